"""The settings with which a session begins."""

from __future__ import annotations

import re

import pytest

from kafka_liveness_dagster.spark.connect.session import close, connect

REDACTION = "spark.sql.redaction.string.regex"
JAAS = (
    'sasl.jaas.config\t"org.apache.kafka.common.security.plain.PlainLoginModule required '
    "password='s3cr3t';\""
)
PLANS = [
    pytest.param(JAAS, id="a login"),
    pytest.param("ssl.keystore.key\t-----BEGIN PRIVATE KEY-----s3cr3t", id="a key"),
    pytest.param('key: "kafka.ssl.key.password"\tvalue: "s3cr3t"', id="the password of a key"),
]


def shown(plan, server):
    """A line of a plan as the server shows it."""
    return re.sub(server.settings.get(REDACTION, "(?!)"), "***", plan)


@pytest.mark.parametrize("plan", PLANS)
def test_a_session_hides_secrets_in_plans(server, session, plan):
    """Spark Connect shows each request in its UI and its event log, with the options of Kafka's source."""
    assert "s3cr3t" not in shown(plan, server)


def test_a_session_adds_to_the_redaction_of_the_server(server):
    """An administrator's pattern goes on to hide what it hid before."""
    server.settings[REDACTION] = "card [0-9]+"
    close(connect(server.remote))
    assert shown("card 4711", server) == "***"
    assert "s3cr3t" not in shown(JAAS, server)


def test_a_session_reads_kafka_by_the_new_reader_and_files_as_before(server, session):
    """Only Kafka's source leaves the list of those that Spark reads by its first interface."""
    assert server.settings["spark.sql.sources.useV1SourceList"] == "avro,csv,json,orc,parquet,text"
