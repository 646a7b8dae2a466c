"""Keep values of records out of a run's errors and log, where the environment variable asks for it.

Spark's server still logs them: nothing here changes what the server does.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.hidden_values import VARIABLE, error_kind, is_enabled
from kafka_liveness_dagster.spark.errors import SparkFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator

_BY_PYSPARK = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers by which pyspark writes each error with a query context to standard error, whoever catches it."""


@contextmanager
def hide_values() -> Iterator[None]:
    """Let no error leave the block with a message of Spark's, nor with one as its cause.

    The named errors of this package contain no message of others where ``is_enabled``; Dagster's own requests
    to retry or to fail have the words of whoever wrote them.

    Raises:
        SparkFailedError: in the place of any other error.
    """
    if is_enabled():
        _silence_pyspark()
    try:
        yield
    except Exception as error:
        if not is_enabled():
            raise
        if isinstance(error, (KafkaLivenessError, dg.Failure, dg.RetryRequested)):
            error.__cause__ = error.__context__ = None
            raise
        raise SparkFailedError(
            f"the run failed with {error_kind(error)}, and nothing more was committed. Its message may "
            f"contain values of records and is left out, because {VARIABLE} is set. Fix: read the message "
            "in the log of Spark's server, or run again without the variable"
        ) from None


def _silence_pyspark() -> None:
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - pyspark stays lazy

    for name in _BY_PYSPARK:
        # The logger is made by pyspark: a plain one would refuse its arguments
        PySparkLogger.getLogger(name).disabled = True
