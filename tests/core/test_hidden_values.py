"""Messages of others contain values of records: they are left out where the environment asks for it."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.hidden_values import VARIABLE, error_kind, error_text, is_enabled


class OfSparkError(Exception):
    """An error with a condition, as Spark's have."""

    def getCondition(self):  # noqa: N802 - pyspark's name
        return "CAST_INVALID_INPUT"


@pytest.mark.parametrize(
    ("value", "asked"), [(None, False), ("", False), ("0", False), (" True ", True), ("1", True)]
)
def test_what_asks_for_it(monkeypatch, value, asked):
    """The message is there unless it is asked to be left out."""
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    assert is_enabled() is asked
    assert error_text(ValueError("hunter2")) == ("ValueError" if asked else "hunter2")


def test_a_condition_of_spark_is_no_value():
    """It says what went wrong, and of which record nothing."""
    assert (
        error_kind(OfSparkError("the value 'hunter2' cannot be cast")) == "OfSparkError [CAST_INVALID_INPUT]"
    )
