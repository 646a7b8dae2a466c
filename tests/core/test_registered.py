"""A registered schema is shown without its text, which may have a thousand lines."""

from __future__ import annotations

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.schemas import Registered, SchemaUnusableError


def test_the_text_is_not_shown_but_distinguishes():
    """Two schemas of one number and two texts are not the same schema."""
    schema = Registered(7, "AVRO", '"string"')
    assert repr(schema) == "Registered(id=7, kind='AVRO')"
    assert schema == Registered(7, "AVRO", '"string"') != Registered(7, "AVRO", '"long"')


def test_an_unusable_schema_is_an_error_of_the_package_and_of_a_value():
    """Users catch either."""
    assert issubclass(SchemaUnusableError, KafkaLivenessError)
    assert issubclass(SchemaUnusableError, ValueError)
