"""Represent a schema of a schema registry. Queries no registry.

>>> SchemaWithId(7, "AVRO", '"string"')
SchemaWithId(id=7, schema_type='AVRO')
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kafka_liveness_dagster.core.errors import KafkaLivenessError


class SchemaUnusableError(KafkaLivenessError, ValueError):
    """A registered schema cannot be used to decode records here; nothing was written."""


@dataclass(frozen=True)
class SchemaWithId:
    """A schema and its number in a registry.

    Attributes:
        id: number of the schema, which a record's wire format contains.
        schema_type: ``AVRO``, ``PROTOBUF`` or ``JSON``.
        text: JSON for Avro and JSON Schema; for Protobuf the .proto file, or its descriptor in base64.
    """

    id: int
    schema_type: str
    text: str = field(repr=False)
