"""Limit the size of the Spark type of a registered schema.

Schemas refer to types by name, and Spark's types write out each use. So 3 kB of names could fill the memory
of this process and of Spark's driver, if each name uses the next one twice.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.schemas import SchemaUnusableError, SchemaWithId

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FIELDS = 10_000
MAX_DEPTH = 64
"""Maximum levels of nested types. Python stops at 1,000 calls, Spark's readers at a few hundred levels."""


class SchemaSize:
    """A count of the fields and levels of one schema while its type is built."""

    def __init__(self, schema: SchemaWithId) -> None:
        self._schema = schema
        self._fields = 0
        self._depth = 0

    @contextmanager
    def field(self) -> Iterator[None]:
        """Count one field, and a level for as long as the block lasts.

        Raises:
            SchemaUnusableError: there are more fields or levels than any hand-written schema has.
        """
        self._fields = self._fields + 1
        self._depth = self._depth + 1
        if self._fields > MAX_FIELDS or self._depth > MAX_DEPTH:
            raise too_large_error(self._schema)
        yield
        self._depth -= 1


def too_large_error(schema: SchemaWithId) -> SchemaUnusableError:
    """Return the error for a schema with more fields or levels than the limits."""
    return SchemaUnusableError(
        f"schema {schema.id} becomes a type of more than {MAX_FIELDS:,} fields or {MAX_DEPTH} levels, "
        "because Spark writes out each use of a name: nothing was written. Fix: correct the schema in the "
        "registry, or decode the column with your own function."
    )
