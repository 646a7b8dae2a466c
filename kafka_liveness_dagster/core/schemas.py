"""What is a schema, as a schema registry has it? Asks no registry.

>>> SchemaWithId(7, "AVRO", '"string"')
SchemaWithId(id=7, schema_type='AVRO')
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kafka_liveness_dagster.core.errors import KafkaLivenessError


class SchemaUnusableError(KafkaLivenessError, ValueError):
    """A registered schema is none that records can be decoded by here; nothing was written."""


@dataclass(frozen=True)
class SchemaWithId:
    """A schema that a registry knows by a number.

    Attributes:
        id: which a record's wire format names.
        schema_type: ``AVRO``, ``PROTOBUF`` or ``JSON``.
        text: JSON for Avro and JSON Schema; for Protobuf the .proto file, or its descriptor in base64.
    """

    id: int
    schema_type: str
    text: str = field(repr=False)
