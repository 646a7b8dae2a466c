"""The example code location: orders from Kafka into an Iceberg table, by default on the embedded services.

``KAFKA_BOOTSTRAP_SERVERS`` and ``SPARK_REMOTE`` replace the embedded broker and Spark Connect server.
"""

from __future__ import annotations

import os

import dagster as dg

import kafka_liveness_dagster as kl
from definitions.orders import orders


def _address(variable: str) -> str | dg.EnvVar:
    """The variable's name when it is set, so that the UI shows that and not its value."""
    return dg.EnvVar(variable) if variable in os.environ else "embedded"


defs = dg.Definitions.merge(
    orders.definitions,
    dg.Definitions(
        resources={
            "kafka": kl.KafkaLivenessResource(
                bootstrap_servers=_address("KAFKA_BOOTSTRAP_SERVERS"),
                # The shortest an unchanged broker allows: a killed run is noticed soon
                session_timeout_seconds=6,
            ),
            "spark": kl.SparkConnectResource(remote=_address("SPARK_REMOTE")),
        },
        executor=dg.in_process_executor,  # a killed run worker leaves no step behind
    ),
)
