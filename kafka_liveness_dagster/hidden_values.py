"""Keep values of records out of what a run reports, where the environment variable asks for it.

Spark and Python put the value that they cannot convert into their error. Spark's server still logs it: nothing here
changes what the server does.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.spark.errors import SparkFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "KAFKA_LIVENESS_HIDE_VALUES"
_BY_PYSPARK = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers by which pyspark writes each error with a query context to standard error, whoever catches it."""


def is_asked() -> bool:
    """Return whether messages of Spark and of users' functions are to be left out."""
    return os.environ.get(VARIABLE, "").strip().lower() in ("1", "true")


def kind_of(error: BaseException) -> str:
    """Return the class of an error, with Spark's name for the condition: neither contains a value.

    >>> kind_of(ValueError("hunter2"))
    'ValueError'
    """
    condition = getattr(error, "getCondition", str)()
    return f"{type(error).__name__} [{condition}]" if condition else type(error).__name__


def reported(error: BaseException) -> str:
    """Return an error's message, or only its kind where messages are left out."""
    return kind_of(error) if is_asked() else str(error)


@contextmanager
def without_values() -> Iterator[None]:
    """Let no error leave the block with a message of Spark's, nor with one as its cause.

    The named errors of this package contain no message of others where ``is_asked``; Dagster's own requests to retry or
    to fail have the words of whoever wrote them.

    Raises:
        SparkFailedError: in the place of any other error.
    """
    if is_asked():
        _silence_pyspark()
    try:
        yield
    except Exception as error:
        if not is_asked():
            raise
        if isinstance(error, (KafkaLivenessError, dg.Failure, dg.RetryRequested)):
            error.__cause__ = error.__context__ = None
            raise
        raise SparkFailedError(
            f"the run failed with {kind_of(error)}, and nothing more was committed. Its message may contain values of "
            f"records and is left out, because {VARIABLE} is set. Fix: read the message in the log of Spark's server, "
            "or run again without the variable"
        ) from None


def _silence_pyspark() -> None:
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - pyspark stays lazy

    for name in _BY_PYSPARK:
        PySparkLogger.getLogger(name).disabled = True  # made by pyspark: a plain logger would refuse its arguments
