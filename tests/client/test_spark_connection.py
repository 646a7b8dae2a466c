"""The connection to Spark: what ends a wait for a server that accepts requests and sends no reply."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.proto.base_pb2 import ExecutePlanRequest

from kafka_liveness_dagster.spark.connect import session as sessions
from kafka_liveness_dagster.spark.connect.connection import SparkConnection, connection_of
from kafka_liveness_dagster.spark.connect.session import close, connect
from kafka_liveness_dagster.spark.errors import SparkNotRespondingError

SECONDS = 10.0  # a wait this long is in vain


class Query(threading.Thread):
    """A query in a thread; ``error`` is what it raised."""

    def __init__(self, session, text):
        super().__init__(daemon=True)
        self.session, self.text, self.error = session, text, None
        self.start()

    def run(self):
        try:
            self.session.sql(self.text).collect()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def is_waiting(self):
        """Return once it waits for a reply in gRPC."""
        give_up_at = time.monotonic() + SECONDS
        while True:
            frame, names = sys._current_frames().get(self.ident), set()
            while frame is not None:
                names.add((Path(frame.f_code.co_filename).name, frame.f_code.co_name))
                frame = frame.f_back
            if {("connection.py", "_iterate_responses"), ("_common.py", "wait")} <= names:
                return
            assert time.monotonic() < give_up_at, names
            time.sleep(0.01)

    def ends_with(self):
        """Return what it raised, when it ends."""
        self.join(SECONDS)
        assert not self.is_alive(), "the query still waits for Spark"
        return self.error


def test_a_call_that_waits_ends_when_the_connection_is_given_up(server, session):
    """Any thread can end it; pyspark's calls have no time limit."""
    server.falls_silent_at("SELECT 1")
    query = Query(session, "SELECT 1")
    query.is_waiting()
    connection_of(session).abort("the batch was too slow")
    error = query.ends_with()
    assert isinstance(error, SparkNotRespondingError)
    assert "the batch was too slow" in str(error)


def test_a_connection_that_was_given_up_stays_so(server, session):
    """Each later call raises at once, and nothing is sent."""
    connection_of(session).abort("the batch was too slow")
    with pytest.raises(SparkNotRespondingError, match="the batch was too slow"):
        session.sql("SELECT 2").collect()
    assert server.executed_with("SELECT 2") == []


@pytest.mark.parametrize(
    ("end", "error"),
    [
        pytest.param(
            lambda line, _: line.abort("the batch was too slow"), SparkNotRespondingError, id="given up"
        ),
        pytest.param(lambda _, channel: channel.close(), ValueError, id="the session ends"),
    ],
)
def test_no_stream_is_opened_on_a_closed_channel(monkeypatch, end, error):
    """Closing waits for a stream that is being opened, whoever closes: pyspark does at a session's end.

    GRPC would end the process with a segmentation fault.
    """
    line, order, threads = SparkConnection("sc://127.0.0.1:1"), [], []
    closed = SimpleNamespace(close=lambda: order.append("closed"))
    monkeypatch.setattr(DefaultChannelBuilder, "toChannel", lambda _: closed)
    channel = line.toChannel()

    def continuation(_details, _request):
        threads.append(threading.Thread(target=end, args=(line, channel)))
        threads[0].start()
        threads[0].join(0.3)  # it would close the channel
        order.append("opened")
        return iter(())

    line.intercept_unary_stream(continuation, None, ExecutePlanRequest())
    threads[0].join(SECONDS)
    assert order == ["opened", "closed"]
    with pytest.raises(error):
        line.intercept_unary_stream(continuation, None, ExecutePlanRequest())
    assert order == ["opened", "closed"]


def test_a_block_has_a_time_limit(server, session):
    """A server that sends no reply is given up when the time is over."""
    server.falls_silent_at("SELECT 3")
    with (
        pytest.raises(SparkNotRespondingError, match="its numbers were read"),
        connection_of(session).abort_after(0.2, "its numbers were read"),
    ):
        query = Query(session, "SELECT 3")
        error = query.ends_with()
        raise error


def test_a_block_that_ends_in_time_leaves_the_connection_as_it_is(session):
    """The time limit ends with the block."""
    with connection_of(session).abort_after(2.0, "its numbers were read") as _:
        pass
    watches = [one for one in threading.enumerate() if one.name == "kafka-liveness-line"]
    for watch in watches:
        watch.join(SECONDS)
    assert not connection_of(session).is_aborted, "the connection was given up after the block"


def test_a_session_ends_in_seconds_on_a_server_that_is_silent(server, monkeypatch):
    """The connection is given up, so that no thread of pyspark's waits at exit."""
    monkeypatch.setattr(sessions, "CLOSE_TIMEOUT_SECONDS", 0.2)
    session = connect(server.remote)
    server.falls_silent_at("ReleaseSession")
    close(session)
    assert server.reached.is_set()
    assert connection_of(session).is_aborted, "the connection is still open"


@pytest.mark.parametrize(
    ("send", "is_noticed"),
    [
        (lambda session: session.conf.set("spark.wap.id", "1"), True),
        (lambda session: session.conf.unset("spark.wap.id"), True),
        (lambda session: session.sql("SET spark.wap.id = 1"), True),
        (lambda session: session.conf.get("spark.sql.timestampType"), False),
        (lambda session: session.range(5).collect(), False),
        (lambda session: session.range(5).schema, False),
        (lambda session: session.range(5).writeTo("lake.shop.orders").append(), False),
    ],
    ids=["set", "unset", "SQL", "get", "query", "analysis", "write"],
)
def test_a_request_that_may_change_a_setting_is_noticed(session, send, is_noticed):
    """Batches read the settings that put rows aside only after such a request."""
    before = connection_of(session).settings_version
    send(session)
    assert (connection_of(session).settings_version is not before) == is_noticed
