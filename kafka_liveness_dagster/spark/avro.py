"""Check that an Avro schema is small enough for Spark, whose driver makes a type of it without a limit.

Whether it is a valid schema, Spark itself says.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.spark.room import Room, too_large

if TYPE_CHECKING:
    from kafka_liveness_dagster.core.registered import Registered


def check(schema: Registered) -> None:
    """Write out each use of a name, as Spark does, until the limit.

    Raises:
        SchemaUnusableError: it has too many fields or levels.
    """
    try:
        root = json.loads(schema.text)
    except RecursionError:
        raise too_large(schema) from None
    except ValueError:
        return
    _Walk(Room(schema)).over(root, "")


class _Walk:
    def __init__(self, room: Room) -> None:
        self._room = room
        self._named: dict[str, tuple[Any, str]] = {}
        self._open: set[str] = set()

    def over(self, schema: Any, namespace: str) -> None:
        """Count what a schema becomes; a name in itself is counted once, because Spark refuses it."""
        with self._room.field():
            if isinstance(schema, list):
                for one in schema:
                    self.over(one, namespace)
            elif isinstance(schema, dict):
                self._complex(schema, namespace)
            elif isinstance(schema, str) and (name := self._known(schema, namespace)) not in self._open:
                self._record(name)

    def _complex(self, schema: dict[str, Any], namespace: str) -> None:
        if isinstance(fields := schema.get("fields"), list):
            within = str(schema.get("namespace", namespace))
            name = _full(str(schema.get("name", "")), within)
            self._named[name] = fields, name.rpartition(".")[0]
            self._record(name)
            return
        for word in ("items", "values", "type"):
            if word in schema:
                self.over(schema[word], namespace)

    def _record(self, name: str) -> None:
        fields, namespace = self._named.get(name, ((), ""))
        self._open.add(name)
        for one in fields:
            if isinstance(one, dict):
                self.over(one.get("type"), namespace)
        self._open.discard(name)

    def _known(self, name: str, namespace: str) -> str:
        full = _full(name, namespace)
        return full if full in self._named else name


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"
