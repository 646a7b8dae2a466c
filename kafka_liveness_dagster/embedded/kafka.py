"""Start the embedded broker: Apache Kafka, one node that is broker and controller, on loopback only.

The settings suit a broker with one user: replication factors of 1, no initial wait for group members, and
session timeouts down to 1 s. A killed broker can rejoin after 4 s instead of 9 s. Compaction checks for work
every second instead of every 15. A misspelled name never creates a topic.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import uuid
from typing import TYPE_CHECKING

from kafka_liveness_dagster.embedded.jars import find_java, resolve_jars
from kafka_liveness_dagster.embedded.processes import (
    LOOPBACK,
    START_SECONDS,
    Launch,
    free_port,
    is_listening,
    last_lines,
    process_marker_option,
    start_seconds,
)
from kafka_liveness_dagster.embedded.state import ServiceNotStartedError, empty_folder, folder_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# log.dirs is relative to the broker's current folder. An absolute path could contain a comma, which divides
# it, or characters outside Latin-1, as which Java reads this file
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{loopback}:{controller_port}
listeners=BROKER://{loopback}:{port},CONTROLLER://{loopback}:{controller_port}
advertised.listeners=BROKER://{loopback}:{port}
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
log.dirs=data
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=5
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=5
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=500
log.cleaner.backoff.ms=1000
"""


def prepare_launch(home: Path, port: int, process_marker: str, show: Callable[[str], None]) -> Launch:
    """Write the broker's settings and, once, format its storage; return the command to start it.

    Raises:
        JarsError, JavaNotFoundError: see `resolve_jars`.
        ServiceNotStartedError: formatting the storage failed, or took too long.
    """
    folder = folder_of(home, "kafka")
    data = folder / "data"
    settings = folder / "server.properties"
    scratch = empty_folder(folder / "tmp")
    options = (
        "-Xmx512m",
        "-XX:+UseSerialGC",
        f"-Djava.io.tmpdir={scratch}",
        *_logging_config(),
        process_marker_option(process_marker),
    )
    java = (str(find_java()), *options, "-cp", f"{resolve_jars('kafka', show=show)}/*")
    settings.write_text(_PROPERTIES.format(loopback=LOOPBACK, port=port, controller_port=free_port()))
    if not (data / "meta.properties").exists():  # the format writes this file last
        show("formatting the storage of Kafka")
        _format_storage(java, data, settings, log=home / "logs" / "kafka-format.log")
    return Launch((*java, "kafka.Kafka", str(settings)), folder, os.environ)


def is_broker_ready(port: int) -> bool:
    """Return whether the broker returns its topics and a group's offsets.

    The port opens a little earlier, and the first group waits for the creation of the offsets topic. Without
    this query the broker would reject the first commit with NOT_COORDINATOR. A consumer sends the query, not
    an AdminClient: there librdkafka 2.16 dereferences NULL (a segmentation fault) if the response is
    NOT_COORDINATOR.
    """
    if not is_listening(port):
        return False
    from confluent_kafka import Consumer, KafkaException, TopicPartition  # noqa: PLC0415  costs 0.1 s

    asking = Consumer({"bootstrap.servers": f"{LOOPBACK}:{port}", "group.id": "is-it-ready", "log_level": 0})
    try:
        asking.list_topics(timeout=2)
        (told,) = asking.committed([TopicPartition("any", 0)], timeout=2)
    except KafkaException:
        return False
    finally:
        asking.close()
    return told.error is None


def _logging_config() -> tuple[str, ...]:
    """Return the options that log warnings and errors to standard error, which is the log file."""
    simple = "-Dorg.slf4j.simpleLogger"
    return (
        f"{simple}.defaultLogLevel=warn",
        f"{simple}.showDateTime=true",
        f"{simple}.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
    )


def _format_storage(java: tuple[str, ...], data: Path, settings: Path, log: Path) -> None:
    shutil.rmtree(data, ignore_errors=True)  # from an interrupted format: no broker has ever run on it
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    seconds = start_seconds()
    try:
        with log.open("wb") as output:
            done = subprocess.run(
                [
                    *java, "kafka.tools.StorageTool", "format",
                    f"--cluster-id={cluster_id}", "-c", str(settings),
                ],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                cwd=settings.parent, timeout=seconds, check=False,
            )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        raise ServiceNotStartedError(
            f"The storage of Kafka was not formatted in {seconds:g} s; an idle machine takes one second. The "
            f"disk of {data.parent} is slow or full, or the machine is busy. The next start formats the "
            f"storage again. Fix: set {START_SECONDS} to a longer time. {log} ends with:\n{last_lines(log)}"
        ) from late
    if done.returncode:
        raise ServiceNotStartedError(
            f"The storage of Kafka could not be formatted (exit code {done.returncode}). Fix: make "
            f"{data.parent} writable, and free space on its disk. {log} ends with:\n{last_lines(log)}"
        )
