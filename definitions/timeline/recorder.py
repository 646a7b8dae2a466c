"""Record a timeline: a topic and a group of its own, a child that stalls, and three sources of events.

The op, its watchdog and librdkafka's own threads write to the child's standard error, which a stall does not
stop. The group's members are read here, from the broker. Everything created here is gone afterwards, also
when interrupted.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from definitions.timeline.events import ClientLog, Scenario, TimelineEvent, What
from kafka_liveness_dagster.core.commit_metadata import CATCH_UP_SUFFIX
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.kafka.admin import REQUEST_SECONDS, Cluster
from kafka_liveness_dagster.kafka.clients import quiet_log
from kafka_liveness_dagster.kafka.errors import to_package_error

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from concurrent.futures import Future

    from kafka_liveness_dagster.kafka.settings import KafkaSettings

RECORDS = 1_000
_FLUSH_SECONDS = 20.0
_LEAST_HEARTBEAT_MS, _MOST_HEARTBEAT_MS = 500, 5_000  # what the embedded broker allows, and KIP-848's default
_POLL_SECONDS = 0.1
_SETTLE_SECONDS = 0.3  # by then everyone has told what happened before
_EXTRA_SECONDS = 120.0
_LEAVE_SECONDS = 8.0
_LAST_LINES = 15


class TimelineError(KafkaLivenessError):
    """The story could not be watched to its end."""


@contextmanager
def temporary_topic(settings: KafkaSettings, scenario: Scenario) -> Iterator[str]:
    """The name of a topic with some records, and of a group, that exist only inside the block."""
    admin = AdminClient(settings.client_config("kafka-liveness/timeline"), logger=quiet_log)
    name = f"timeline-{uuid4().hex[:8]}"
    try:
        Cluster(settings).partitions(())  # without a broker there is nothing to make or to undo
        with ExitStack() as to_undo:  # told how to undo before it is done: Ctrl-C may come in between
            to_undo.callback(_delete_topic, admin, name)
            _wait_for_result(admin.create_topics([NewTopic(name, 1)], request_timeout=REQUEST_SECONDS))
            if scenario.protocol == "consumer":
                to_undo.callback(_configure_group, admin, name, AlterConfigOpType.DELETE, scenario)
                _configure_group(admin, name, AlterConfigOpType.SET, scenario)
            for group in (name, name + CATCH_UP_SUFFIX):
                to_undo.callback(_delete_group, admin, group, scenario.session)
            _fill_topic(settings, name)
            yield name
    except KafkaException as error:
        raise to_package_error(
            error, f"making or removing topic and group {name}", settings.bootstrap_servers
        ) from error


def record_events(settings: KafkaSettings, name: str, scenario: Scenario) -> Generator[TimelineEvent]:
    """The events of one stalled consumer as they happen, in order, in seconds since its first poll.

    Raises:
        TimelineError: the consumer ended before its story did, or not at all.
    """
    events: queue.Queue[TimelineEvent | None] = queue.Queue()
    with (
        _stalled_process(settings, name, scenario) as child,
        _observing_group(Cluster(settings), name, events),
    ):
        last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        threading.Thread(target=_read_child, args=(child, events, last_lines), daemon=True).start()
        yield from _relative_to_first(
            _ordered_events(events, scenario.stall + scenario.poll_interval + _EXTRA_SECONDS)
        )
        if child.wait(_LEAVE_SECONDS):
            raise TimelineError(
                f"the consumer ended with code {child.returncode}, saying:\n{''.join(last_lines).strip()}"
            )


def _wait_for_result(futures: Mapping[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result()


def _configure_group(admin: AdminClient, group: str, how: AlterConfigOpType, scenario: Scenario) -> None:
    """Set the group's session timeout (KIP-848); the broker keeps this setting when the group is gone."""
    session_ms = round(scenario.session * 1000)
    heartbeat_ms = max(_LEAST_HEARTBEAT_MS, min(_MOST_HEARTBEAT_MS, session_ms // 3))
    values = {"consumer.session.timeout.ms": session_ms, "consumer.heartbeat.interval.ms": heartbeat_ms}
    entries = [ConfigEntry(key, str(value), incremental_operation=how) for key, value in values.items()]
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
    _wait_for_result(admin.incremental_alter_configs([resource], request_timeout=REQUEST_SECONDS))


def _fill_topic(settings: KafkaSettings, topic: str) -> None:
    producer = Producer(settings.client_config("kafka-liveness/timeline"), logger=quiet_log)
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode())
    if missing := producer.flush(_FLUSH_SECONDS):
        raise TimelineError(f"{missing} of {RECORDS} records were not accepted within {_FLUSH_SECONDS:g} s")


def _delete_topic(admin: AdminClient, topic: str) -> None:
    try:
        _wait_for_result(admin.delete_topics([topic], request_timeout=REQUEST_SECONDS))
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise


def _delete_group(admin: AdminClient, group: str, session_seconds: float) -> None:
    """As soon as it is empty: a member that was killed counts until its session timeout."""
    give_up_at = time.monotonic() + session_seconds + _LEAVE_SECONDS
    while True:
        try:
            _wait_for_result(admin.delete_consumer_groups([group], request_timeout=REQUEST_SECONDS))
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.NON_EMPTY_GROUP and time.monotonic() < give_up_at:
                time.sleep(_POLL_SECONDS)
                continue
            if code != KafkaError.GROUP_ID_NOT_FOUND:  # nobody joined it
                raise
        return


@contextmanager
def _stalled_process(
    settings: KafkaSettings, name: str, scenario: Scenario
) -> Iterator[subprocess.Popen[str]]:
    """The child. It ends when its standard input does, so also when this process is killed.

    How it reaches Kafka is told there, and not on its command line: it may be a secret.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "definitions.timeline.stalled_consumer", json.dumps([name, asdict(scenario)])],
        # In a wheel the example lies in the package
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C is for us: the child is to leave its group
    )
    assert child.stdin is not None  # noqa: S101 - it is a pipe
    try:
        child.stdin.write(json.dumps(asdict(settings)) + "\n")
        child.stdin.flush()
        yield child
    finally:
        child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_LEAVE_SECONDS)
        child.kill()
        child.wait()


@contextmanager
def _observing_group(
    cluster: Cluster, group: str, events: queue.Queue[TimelineEvent | None]
) -> Iterator[None]:
    """Ask the broker again and again who is in the group, and tell when that changes."""
    done = threading.Event()
    looker = threading.Thread(target=_observe_group, args=(cluster, group, events, done), daemon=True)
    looker.start()
    try:
        yield
    finally:
        done.set()
        looker.join()


def _observe_group(
    cluster: Cluster, group: str, events: queue.Queue[TimelineEvent | None], done: threading.Event
) -> None:
    seen: set[str] = set()
    while not done.wait(_POLL_SECONDS):
        try:
            members = {member.member_id for member in cluster.members(group)}
        except KafkaLivenessError:
            continue  # a look that was not answered tells nothing
        at, seen, before = time.time(), members, seen
        if members != before:
            detail = ", ".join(f"…{member[-8:]}" for member in sorted(members))
            events.put(TimelineEvent(at, What.MEMBER_SEEN if members else What.GROUP_EMPTY, detail))


def _read_child(
    child: subprocess.Popen[str], events: queue.Queue[TimelineEvent | None], last_lines: deque[str]
) -> None:
    """Read what the child writes until it ends."""
    log = ClientLog()
    assert child.stderr is not None  # noqa: S101 - it is a pipe
    for line in child.stderr:
        if (event := log.read(line)) is not None:
            events.put(event)
        elif not line.startswith("%7"):
            last_lines.append(line)
    events.put(None)


def _ordered_events(events: queue.Queue[TimelineEvent | None], seconds: float) -> Iterator[TimelineEvent]:
    """What is told, by when it happened rather than by when it was heard of, until the child has ended."""
    waiting: list[TimelineEvent] = []
    give_up_at, ended = time.monotonic() + seconds, False
    while not ended or waiting:
        if time.monotonic() > give_up_at:
            raise TimelineError(f"the consumer has not ended after {seconds:g} s: is the broker alive?")
        with suppress(queue.Empty):
            heard = events.get(timeout=_POLL_SECONDS)
            ended = ended or heard is None
            waiting += [heard] if heard is not None else []
        waiting.sort(key=lambda event: event.at)
        while waiting and waiting[0].at < time.time() - _SETTLE_SECONDS:
            yield waiting.pop(0)


def _relative_to_first(events: Iterator[TimelineEvent]) -> Iterator[TimelineEvent]:
    zero = None
    for event in events:
        zero = event.at if zero is None else zero
        yield replace(event, at=round(event.at - zero, 3))
