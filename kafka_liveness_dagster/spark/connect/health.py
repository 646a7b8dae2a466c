"""Check whether a Spark server that responds can still run a job. Never restarts a server.

The port of Spark Connect stays open after the executor, the block manager or the SparkContext behind it has
stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from kafka_liveness_dagster.spark.connect.connection import connection_of, redact
from kafka_liveness_dagster.spark.connect.session import close, connect
from kafka_liveness_dagster.spark.error_classification import is_server_error, summarize
from kafka_liveness_dagster.spark.errors import SparkUnreachableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIX = "Fix: restart the server; `kafka-liveness up` restarts the embedded one."
_CONNECT_SECONDS = 10.0
JOB_TIMEOUT_SECONDS = 20.0  # the first job of a new server took 8 s on a machine with load
_STOPPED_MESSAGE = "Application error processing RPC"
"""gRPC's text if the server raises before it opens or finds a session, as after its SparkContext stopped."""


def dead_reason(session: SparkSession, seconds: float) -> str:
    """Return why the server cannot run a job, as a sentence; empty if one ran, or the connection was lost.

    Raises:
        SparkNotRespondingError: the job did not end in time, because the server is busy or hangs. A busy
            server is not dead.
    """
    line = connection_of(session)
    try:
        with line.abort_after(seconds, "a job of one row was running"):
            session.range(0, 1, 1, 1).count()
    except PySparkException as error:
        if _STOPPED_MESSAGE in str(error):
            return _dead_message(line.address, _STOPPED_MESSAGE)
        if not is_server_error(error):
            return _dead_message(line.address, summarize(error))
    return ""


def dead_reason_at(remote: str) -> str:
    """Return why the server at this address cannot run a job, with a session that ends with this call.

    Raises:
        SparkNotRespondingError: as for `dead_reason`.
        SparkUnreachableError: the server opened no session.
    """
    try:
        session = connect(remote, timeout_seconds=_CONNECT_SECONDS)
    except SparkUnreachableError as error:
        if _STOPPED_MESSAGE in str(error):
            return _dead_message(redact(remote), _STOPPED_MESSAGE)
        raise
    try:
        return dead_reason(session, JOB_TIMEOUT_SECONDS)
    finally:
        close(session)


def _dead_message(address: str, why: str) -> str:
    return f"Spark at {address} responds, but cannot run a job ({why})."
