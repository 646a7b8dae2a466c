"""Find out whether a Spark that answers can still run a job. Never restarts anything.

The port of Spark Connect stays open, and a session opens, when the executor, the block manager or the Spark context
behind it has stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from kafka_liveness_dagster.spark.errors import SparkUnreachableError
from kafka_liveness_dagster.spark.failed import in_short, is_the_servers
from kafka_liveness_dagster.spark.line import line_of
from kafka_liveness_dagster.spark.session import connect, end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT_SECONDS = 10.0
_JOB_SECONDS = 20.0
_STOPPED = "SparkContext"


def why_dead(session: SparkSession, seconds: float) -> str:
    """Return why the server can run no job; empty when it ran one.

    Raises:
        SparkUnreachableError: the job of one row did not end in time: the server is busy, or hangs.
    """
    try:
        with line_of(session).within(seconds, "a job of one row was to show that it runs jobs"):
            session.range(0, 1, 1, 1).count()
    except PySparkException as error:
        return "" if is_the_servers(error) else in_short(error)
    return ""


def why_dead_at(remote: str) -> str:
    """Return why the server at this address can run no job, by a session of its own.

    Raises:
        SparkUnreachableError: as `why_dead`, or no session was opened.
    """
    try:
        session = connect(remote, timeout_seconds=_CONNECT_SECONDS)
    except SparkUnreachableError as error:
        if _STOPPED in str(error):  # "Cannot call methods on a stopped SparkContext"
            return str(error)
        raise
    try:
        return why_dead(session, _JOB_SECONDS)
    finally:
        end(session)
