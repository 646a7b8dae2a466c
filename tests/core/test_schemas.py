"""A registered schema is shown without its text, which may have a thousand lines."""

from __future__ import annotations

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.schemas import SchemaUnusableError, SchemaWithId


def test_the_text_is_not_shown_but_distinguishes():
    """Two schemas of one number and two texts are not the same schema."""
    schema = SchemaWithId(7, "AVRO", '"string"')
    assert repr(schema) == "SchemaWithId(id=7, schema_type='AVRO')"
    assert schema == SchemaWithId(7, "AVRO", '"string"') != SchemaWithId(7, "AVRO", '"long"')


def test_an_unusable_schema_is_an_error_of_the_package_and_of_a_value():
    """Users catch either."""
    assert issubclass(SchemaUnusableError, KafkaLivenessError)
    assert issubclass(SchemaUnusableError, ValueError)
