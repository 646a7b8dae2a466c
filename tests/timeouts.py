"""Time limits of tests: a factor for slow machines, patient limits of the product, the timeouts of a group.

Never waits: see ``tests.waiting``.
"""

from __future__ import annotations

import importlib
import math
import os
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

FACTOR = "KAFKA_LIVENESS_TEST_TIME_FACTOR"
CONNECT_SECONDS = 120.0
_PATIENT = {
    "kafka_liveness_dagster.kafka.timestamps.READ_TIMEOUT_SECONDS": 60.0,
    "kafka_liveness_dagster.sensor.table_ledger.QUERY_TIMEOUT_SECONDS": 300.0,
}
"""Limits of the product that a busy machine exceeds, with values for tests that have another subject."""


def seconds(at_rest: float) -> float:
    """Multiply a real deadline, or a bound on one, by the factor of this machine.

    Raises:
        ValueError: the environment variable holds no number from 1 on.
    """
    text = os.environ.get(FACTOR, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 1 <= factor < math.inf:
        raise ValueError(f"{FACTOR} is {text!r}: wanted a number from 1 on")
    return at_rest * factor


@cache
def _connect_of_the_product() -> Callable[..., SparkSession]:
    from kafka_liveness_dagster.spark.connect.session import connect  # noqa: PLC0415 - only where Spark is used

    return connect


def connect(remote: str, *, timeout_seconds: float = CONNECT_SECONDS, **options: Any) -> SparkSession:
    """Open a Spark session as the product does, with at least ``CONNECT_SECONDS`` where a server listens.

    Where nothing listens the caller's limit holds: a test of an absent server would wait in vain.
    """
    from kafka_liveness_dagster.embedded.processes import is_listening  # noqa: PLC0415 - only where Spark is used

    port = re.match(r"sc://[^:/]+:(\d+)", remote)
    if port and is_listening(int(port[1])):
        timeout_seconds = max(timeout_seconds, seconds(CONNECT_SECONDS))
    return _connect_of_the_product()(remote, timeout_seconds=timeout_seconds, **options)


def be_patient(put: Callable[[object, str, object], None] = setattr) -> None:
    """Give the product's limits in this process the values of tests that have another subject."""
    _connect_of_the_product()
    for name, value in {**_PATIENT, "kafka_liveness_dagster.spark.connect.session.connect": connect}.items():
        module, _, attribute = name.rpartition(".")
        put(importlib.import_module(module), attribute, value)


def set_timeouts(bootstrap_servers: str, group_id: str, session: float, heartbeat: float) -> None:
    """Set the session timeout and the heartbeat interval of a KIP-848 group, in seconds.

    Under KIP-848 both are the broker's; a member of the classic protocol brings its own.
    """
    wanted = {"consumer.session.timeout.ms": session, "consumer.heartbeat.interval.ms": heartbeat}
    entries = [
        ConfigEntry(setting, str(round(value * 1000)), incremental_operation=AlterConfigOpType.SET)
        for setting, value in wanted.items()
    ]
    group = ConfigResource(ConfigResource.Type.GROUP, group_id, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.incremental_alter_configs([group])[group].result()
