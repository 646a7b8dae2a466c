"""A Spark Connect server that returns prepared results, and a session on it."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.spark.connect.session import close, connect
from tests.client.fake_connect_server import connect_server


@pytest.fixture
def server():
    """A server of the test's own."""
    with connect_server() as found:
        yield found


@pytest.fixture
def session(server):
    """A session on the server, as a run has it."""
    found = connect(server.remote)
    yield found
    server.stop()
    close(found)
