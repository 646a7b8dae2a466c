"""Keep values of records out of a run's errors and log, if the environment variable is set.

Never changes the Spark server, which still logs them.
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
"""pyspark's loggers that write each error with a query context to standard error, even if it is caught."""


@contextmanager
def hide_values() -> Iterator[None]:
    """Replace each error of the block that has a message of Spark, itself or in its cause.

    With ``is_enabled`` the errors of this package contain no message of others. Dagster's requests to retry
    or to fail keep the text of the user who raised them.

    Raises:
        SparkFailedError: instead of any other error.
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
            f"contain values of records and is left out, because {VARIABLE} is set. Fix: read the "
            "message in the log of Spark's server, or run again without the variable"
        ) from None


def _silence_pyspark() -> None:
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - pyspark stays lazy

    for name in _BY_PYSPARK:
        # pyspark must create the logger: a plain one refuses pyspark's arguments
        PySparkLogger.getLogger(name).disabled = True
