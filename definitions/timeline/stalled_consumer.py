"""The op of a timeline: it polls a batch, works on it for longer than it may, and polls again.

A process of its own, since only then can its client's log be read while it is stalled. It ends with the
process that started it: when its standard input ends it leaves the group and goes.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from definitions.timeline.events import DEBUG, Scenario, What, format_op_line
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.kafka.errors import CommitRefusedError
from kafka_liveness_dagster.resources.kafka import KafkaLivenessResource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer

IN_TIME_SHARE = 0.25  # of the poll interval: how long the op works on the batch when it gets it again
_BATCH_SECONDS = 60.0
_LEAVE_SECONDS = 5.0


def main(cluster: Mapping[str, Any], name: str, scenario: Scenario) -> None:
    """Consume topic ``name`` as a member of group ``name``: too slowly the first time, in time the second.

    Args:
        cluster: the fields of its ``KafkaSettings``.
        name: of topic and group.
        scenario: how slowly.
    """
    _print_watchdog_log()
    ended = threading.Event()
    threading.Thread(target=_exit_with_parent, args=(ended,), daemon=True).start()
    told = {
        "bootstrap_servers": cluster["bootstrap_servers"],
        **cluster["security"],
        **_protocol_settings(scenario),
    }
    kafka = KafkaLivenessResource(extra={**cluster["extra"], "debug": DEBUG}, **told)
    with kafka.consumer(topics=[name], group_id=name, max_batch_seconds=scenario.poll_interval) as consumer:
        _print_event(What.CONSUMER_CREATED, str(consumer.timeouts))
        for work_seconds in (scenario.stall, scenario.poll_interval * IN_TIME_SHARE):
            batch = _poll(consumer)
            if ended.wait(work_seconds):
                return
            _commit(consumer, batch)


def _protocol_settings(scenario: Scenario) -> dict[str, Any]:
    if scenario.protocol == "consumer":  # the session timeout is the group's
        return {"group_protocol": "consumer"}
    return {"session_timeout_seconds": scenario.session}


def _poll(consumer: LivenessConsumer) -> Batch:
    _print_event(What.POLL_CALLED)
    batch = consumer.poll(_BATCH_SECONDS)
    if batch is None:
        sys.exit(f"no batch came within {_BATCH_SECONDS:g} s")
    _print_event(What.BATCH_POLLED, ", ".join(map(str, batch.ranges)))
    return batch


def _commit(consumer: LivenessConsumer, batch: Batch) -> None:
    try:
        consumer.commit(batch)
    except CommitRefusedError as refused:
        _print_event(What.COMMIT_REFUSED, str(refused).partition(";")[0])
    else:
        _print_event(What.BATCH_COMMITTED, ", ".join(map(str, batch.ranges)))


def _print_event(what: What, detail: str = "") -> None:
    # One write: librdkafka's threads write there too
    sys.stderr.write(format_op_line(time.time(), what, detail) + "\n")


def _print_watchdog_log() -> None:
    logging.getLogger("kafka_liveness_dagster").addHandler(_EventHandler())


class _EventHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes a fence as an event, and the rest as it is."""

    def format(self, record: logging.LogRecord) -> str:
        reason = getattr(record, "fence", None)
        if isinstance(reason, FenceReason):
            return format_op_line(record.created, What.FENCED, reason.value)
        return super().format(record)


def _exit_with_parent(ended: threading.Event) -> None:
    os.read(sys.stdin.fileno(), 1)  # nothing more is written there
    ended.set()
    time.sleep(_LEAVE_SECONDS)
    os._exit(1)  # a broker that does not answer is not waited for


if __name__ == "__main__":
    named, told = json.loads(sys.argv[1])
    try:
        main(json.loads(sys.stdin.readline()), named, Scenario(**told))
    except KafkaLivenessError as error:
        sys.exit(str(error))
