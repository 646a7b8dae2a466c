"""Find offsets by timestamp, and the processed offsets of a time window.

Offsets count the waiting records, timestamps show how long they wait: with a record an hour, a lag of one is
hours. Joins no group and commits nothing.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import OffsetSpec

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.health import OpenTransaction
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition, difference, intersection
from kafka_liveness_dagster.core.partition_state import DataExpiredError
from kafka_liveness_dagster.kafka.admin import REQUEST_SECONDS
from kafka_liveness_dagster.kafka.clients import admin_client, create_client
from kafka_liveness_dagster.kafka.errors import KafkaRefusedError, to_package_error
from kafka_liveness_dagster.kafka.partition_states import check_catch_up_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kafka_liveness_dagster.core.partition_state import PartitionState
    from kafka_liveness_dagster.kafka.admin import Cluster


_MAX_MEASURED_PARTITIONS = 10
READ_TIMEOUT_SECONDS = 2.0  # limit of reading a few records; the result is of those that came in time
_MAX_MESSAGES = 100  # messages in one response
_MAX_FAILED_READS = 5  # each takes READ_TIMEOUT_SECONDS


def seconds_behind(
    cluster: Cluster,
    group_id: str,
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> float | None:
    """Return the seconds between the timestamps of the newest processed and the newest log record.

    This is the largest value of a partition, among the ten partitions with the largest lag. A timestamp may
    be the producer's (``CreateTime``). It is used as it is, even if the record is older than its neighbors.

    Args:
        cluster: cluster of the partitions.
        group_id: group that the reader names; nothing is joined or committed.
        positions: positions of the lane.
        ends: log ends.

    Returns:
        0 without lag; None if it is unknown, because the broker is older than 3.0 or slow.

    Raises:
        BrokerUnreachableError: no broker responds.
        KafkaRefusedError: the broker refuses the request.
    """
    waiting = sorted(
        (tp for tp in positions if ends[tp] > positions[tp]), key=lambda tp: positions[tp] - ends[tp]
    )
    if not waiting:
        return 0.0
    newest = _newest_timestamps(cluster, waiting[:_MAX_MEASURED_PARTITIONS])
    processed = timestamps(cluster, group_id, {tp: max(0, positions[tp] - 1) for tp in newest})
    behind = [newest[tp] - at_ms for tp, at_ms in processed.items()]
    return max(0, *behind) / 1000 if behind else None


def open_transactions(
    cluster: Cluster, group_id: str, ends: Mapping[TopicPartition, int]
) -> tuple[OpenTransaction, ...]:
    """Return the offsets behind open transactions; with their age for the ten largest partitions.

    Args:
        cluster: cluster of the partitions.
        group_id: group that the reader names; nothing is joined or committed.
        ends: the last stable offsets of a moment ago.

    Raises:
        BrokerUnreachableError: no broker responds.
        KafkaRefusedError: the broker refuses the request.
    """
    very_ends = _list_offsets(cluster, ends, OffsetSpec.latest(), operation="reading the log ends")
    behind = [tp for tp, at in very_ends.items() if at.offset > ends[tp]]
    # Read again, later: records that became stable meanwhile are behind no transaction
    stable = {tp: end for tp, (_, end) in cluster.log_bounds(behind).items()}
    waiting = {tp: very_ends[tp].offset - end for tp, end in stable.items() if very_ends[tp].offset > end}
    if not waiting:
        return ()
    worst = sorted(waiting, key=lambda tp: -waiting[tp])[:_MAX_MEASURED_PARTITIONS]
    began = timestamps(cluster, group_id, {tp: stable[tp] for tp in worst}, isolation="read_uncommitted")
    ages = {tp: max(0.0, time.time() - at_ms / 1000) for tp, at_ms in began.items() if at_ms > 0}
    return tuple(
        OpenTransaction(tp, stable[tp], count, open_seconds=ages.get(tp)) for tp, count in waiting.items()
    )


def timestamps(
    cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, int], isolation: str = "read_committed"
) -> dict[TopicPartition, int]:
    """Return the timestamp in milliseconds of the first record at or after each offset.

    Partitions whose record did not come in time are left out. The offset itself may have no record: it may be
    a transaction's marker, or compacted away.
    """
    with _reader(cluster, group_id, isolation) as client:
        found, _ = _first_records(client, offsets, time.monotonic() + READ_TIMEOUT_SECONDS)
    return {tp: at_ms for tp, (_, at_ms) in found.items()}


def timestamps_at(
    cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, Sequence[int]]
) -> Iterator[tuple[TopicPartition, int, int | None]]:
    """Yield each partition, offset and timestamp in milliseconds of the first record at or after the offset.

    One client reads all of them, an offset of each partition in a request. The timestamp is None if there is
    no such record yet. Offsets whose records did not come in time are left out, and after a few of these the
    rest.

    Raises:
        BrokerUnreachableError: no broker responds.
        KafkaRefusedError: the broker refuses the request.
    """
    failures = 0
    with _reader(cluster, group_id) as client:
        for turn in range(max(map(len, offsets.values()), default=0)):
            wanted = {tp: rest[turn] for tp, rest in offsets.items() if turn < len(rest)}
            found, unheard = _first_records(client, wanted, time.monotonic() + READ_TIMEOUT_SECONDS)
            for tp, offset in wanted.items():
                if tp not in unheard:
                    yield tp, offset, found[tp][1] if tp in found else None
            failures += bool(unheard)
            if failures > _MAX_FAILED_READS:
                return


@contextmanager
def _reader(cluster: Cluster, group_id: str, isolation: str = "read_committed") -> Iterator[Any]:
    """Open a consumer without a group for reads of single records, and close it."""
    settings = cluster.settings
    reader = settings.reader_config(group_id, "kafka-liveness/behind")
    config = {**reader, "auto.offset.reset": "earliest", "isolation.level": isolation}
    client: Any = create_client(Consumer, config)
    try:
        yield client
    except KafkaException as error:
        raise to_package_error(
            error, f"reading the age of the records of {group_id}", settings.bootstrap_servers
        ) from error
    finally:
        client.close()


def _first_records(
    client: Any, offsets: Mapping[TopicPartition, int], give_up_at: float
) -> tuple[dict[TopicPartition, tuple[int, int]], set[TopicPartition]]:
    """Return offset and timestamp of the first records, and the partitions without a response in time."""
    found: dict[TopicPartition, tuple[int, int]] = {}
    unheard = set(offsets)
    client.assign([KafkaTopicPartition(*tp, offset) for tp, offset in offsets.items()])
    client.resume([KafkaTopicPartition(*tp) for tp in offsets])  # a pause outlasts the assignment
    while unheard and (left := give_up_at - time.monotonic()) > 0:
        heard: set[TopicPartition] = set()
        # One message a partition is enough: for more than there are, the client waits for the whole time
        for message in client.consume(min(len(unheard), _MAX_MESSAGES), min(left, 0.1)):
            at = TopicPartition(message.topic(), message.partition())
            if message.error() is None and message.offset() < offsets.get(at, 0):
                continue  # fetched for the assignment before this one
            if at in unheard - heard and not message.error():
                found[at] = message.offset(), message.timestamp()[1]
            heard.add(at)
        heard &= unheard
        unheard -= heard
        # Without the pause, records of the other partitions wait behind the rest of these. Without other
        # partitions none is paused: a fetch after `resume` may start a second late (librdkafka 2.16)
        if unheard:
            client.pause([KafkaTopicPartition(*tp) for tp in heard])
    return found, unheard


def _record_times(
    cluster: Cluster, group_id: str, wanted: Iterable[tuple[OffsetRange, int]]
) -> dict[tuple[OffsetRange, int], float]:
    """Return the timestamp, in seconds since the epoch, of the first record at each offset of a range.

    One read has at most one offset of a partition, so several offsets of a partition need several reads.
    Offsets whose record did not come in time, and ranges without a record, are left out.
    """
    waiting: dict[TopicPartition, list[tuple[OffsetRange, int]]] = {}
    for one in sorted(wanted, key=lambda one: one[1]):
        waiting.setdefault(one[0].topic_partition, []).append(one)
    found: dict[tuple[OffsetRange, int], float] = {}
    if not waiting:
        return found
    give_up_at = time.monotonic() + READ_TIMEOUT_SECONDS
    with _reader(cluster, group_id) as client:
        while waiting and time.monotonic() < give_up_at:
            asked = {tp: several.pop(0) for tp, several in waiting.items()}
            starts = {tp: offset for tp, (_, offset) in asked.items()}
            read, _ = _first_records(client, starts, give_up_at)
            for tp, (offset, at_ms) in read.items():
                r, at = asked[tp]
                # The first record of an expired range is behind its end
                if (offset < r.end or at > r.start) and at_ms > 0:
                    found[r, at] = at_ms / 1000
            waiting = {tp: several for tp, several in waiting.items() if several}
    return found


def oldest_timestamps(
    cluster: Cluster, group_id: str, ranges: Iterable[OffsetRange]
) -> dict[OffsetRange, float]:
    """Return the timestamp of the first record of each range, in seconds since the epoch.

    Ranges whose record did not come in time, and ranges without a record, are left out.

    Args:
        cluster: cluster of the partitions.
        group_id: group that the reader names; nothing is joined or committed.
        ranges: the ranges.

    Raises:
        BrokerUnreachableError: no broker responds.
        KafkaRefusedError: the broker refuses the request.
    """
    found = _record_times(cluster, group_id, [(r, r.start) for r in ranges])
    return {r: moment for (r, _), moment in found.items()}


def event_times(
    cluster: Cluster, group_id: str, ranges: Iterable[OffsetRange]
) -> dict[OffsetRange, tuple[float, float]]:
    """Return the timestamps of the first and the last record of the ten largest ranges.

    In seconds since the epoch. Without a record at the last offset, the next record of the partition counts.
    Ranges without a record, and those whose records did not come in time, are left out.

    Raises:
        BrokerUnreachableError: no broker responds.
        KafkaRefusedError: the broker refuses the request.
    """
    largest = sorted(ranges, key=lambda r: -r.size)[:_MAX_MEASURED_PARTITIONS]
    wanted = {(r, offset) for r in largest for offset in (r.start, r.end - 1)}
    found = _record_times(cluster, group_id, wanted)
    return {
        r: (found[r, r.start], found[r, r.end - 1])
        for r in largest
        if {(r, r.start), (r, r.end - 1)} <= found.keys()
    }


def offsets_for_times(
    cluster: Cluster, partitions: Iterable[TopicPartition], at_ms: int
) -> dict[TopicPartition, int | None]:
    """Return each partition's first offset with a timestamp at or after this one; None without one.

    Raises:
        BrokerUnreachableError: no broker responds.
        KafkaRefusedError: the broker refuses the request.
    """
    found = _list_offsets(
        cluster, partitions, OffsetSpec.for_timestamp(at_ms), operation="reading the offsets of a time"
    )
    return {tp: one.offset if one.offset >= 0 else None for tp, one in found.items()}


def window_bounds(
    cluster: Cluster, partitions: Sequence[TopicPartition], begin_ms: int, end_ms: int
) -> tuple[dict[TopicPartition, int | None], dict[TopicPartition, int]]:
    """Return the offsets between which a time window lies in each partition.

    Args:
        cluster: cluster of the partitions.
        partitions: partitions of the topics.
        begin_ms: begin of the window, since the epoch.
        end_ms: end of the window; the first offset at or after it is behind the window.

    Returns:
        The first offsets at or after the window's begin, None without one; and the first offsets behind the
        window. Without one behind it, this is the end of the whole log, open transactions included, because
        the timestamps of their records are not visible yet.

    Raises:
        BrokerUnreachableError: no broker responds.
        KafkaRefusedError: the broker refuses the request.
    """
    return offsets_for_times(cluster, partitions, begin_ms), window_ends(cluster, partitions, end_ms)


def window_ends(
    cluster: Cluster, partitions: Sequence[TopicPartition], end_ms: int
) -> dict[TopicPartition, int]:
    """Return the offsets behind a window, as ``window_bounds`` does.

    Raises:
        BrokerUnreachableError: no broker responds.
        KafkaRefusedError: the broker refuses the request.
    """
    found = offsets_for_times(cluster, partitions, end_ms)
    last = [tp for tp, at in found.items() if at is None]
    ends = _list_offsets(cluster, last, OffsetSpec.latest(), operation="reading the log ends")
    return {tp: ends[tp].offset if at is None else at for tp, at in found.items()}


def _newest_timestamps(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return each partition's newest timestamp in milliseconds, if it has one; none before Kafka 3.0."""
    try:
        found = _list_offsets(
            cluster, partitions, OffsetSpec.max_timestamp(), operation="reading the newest timestamps"
        )
    except KafkaRefusedError:
        return {}
    return {tp: one.timestamp for tp, one in found.items() if one.offset >= 0}


def _list_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], offset_spec: OffsetSpec, operation: str
) -> dict[TopicPartition, Any]:
    admin, heard = admin_client(cluster.settings)
    wanted = {KafkaTopicPartition(*tp): offset_spec for tp in partitions}
    if not wanted:
        return {}
    asked = admin.list_offsets(wanted, request_timeout=REQUEST_SECONDS)
    try:
        return {TopicPartition(tp.topic, tp.partition): one.result() for tp, one in asked.items()}
    except KafkaException as error:
        admin.poll(0)  # calls the error listener, which then explains this error
        raise heard.to_package_error(error, operation) from error


@dataclass(frozen=True)
class ProcessedRanges:
    """A group's offsets between two times.

    Attributes:
        ranges: processed ranges.
        pending: pending ranges, which are not processed yet.
        unread: number of offsets that the live lane has not read yet, including open transactions and
            partitions without a commit.
    """

    ranges: tuple[OffsetRange, ...]
    pending: tuple[OffsetRange, ...]
    unread: int

    def excluded_lines(self) -> Iterator[str]:
        """Yield a line for each reason why offsets of the window are not in ``ranges``."""
        if self.pending:
            ranges = ", ".join(map(str, self.pending))
            yield f"because they are pending and have partitions of their own: {ranges}"
        if self.unread:
            yield f"because the live lane has not read them yet: {self.unread:,} offsets"


def processed_ranges(
    cluster: Cluster,
    group_id: str,
    topics: Sequence[str],
    begin_ms: int,
    end_ms: int | None,
    *,
    allow_expired: bool = False,
) -> ProcessedRanges:
    """Return a group's offsets with timestamps from ``begin_ms`` to before ``end_ms``, since the epoch.

    Args:
        cluster: cluster of the group.
        group_id: the live lane's group.
        topics: topics to search; none for all that the group has commits of.
        begin_ms: begin of the window.
        end_ms: end of the window; None for all committed offsets.
        allow_expired: whether to return what the broker still has, instead of raising.

    Raises:
        InvalidSettingError: the group has committed nothing.
        DataExpiredError: the broker has deleted records, maybe some of the window's.
        ExternalCommitError: an external commit replaced the catch-up commit log; the next run with a table
            rewrites it.
    """
    known = cluster.partitions(list(topics) or None)
    states = cluster.partition_states(group_id, sorted(cluster.commits(group_id, known)))
    check_catch_up_log(cluster, group_id, states)
    if not states:
        raise InvalidSettingError(
            f"group {group_id} has committed nothing{' of these topics' if topics else ''}. Fix: check "
            f"the group and the topics with `kafka-liveness status {group_id}`"
        )
    first: Mapping[TopicPartition, int | None]
    behind: Mapping[TopicPartition, int | None] = dict.fromkeys(states)
    if end_ms is None:
        first = offsets_for_times(cluster, states, begin_ms)
    else:
        first, behind = window_bounds(cluster, list(states), begin_ms, end_ms)
    spans = {tp: _window_span(first[tp], behind[tp], one.log_end) for tp, one in states.items()}
    new = cluster.log_bounds(tp for tp in known if topics and tp not in states)
    if not allow_expired:
        _require_whole(states, spans)
    return ProcessedRanges(
        tuple(OffsetRange(*tp, *span) for tp, one in states.items() for span in _done_spans(one, spans[tp])),
        tuple(
            OffsetRange(*tp, *s)
            for tp, one in states.items()
            for s in intersection(one.outstanding, (spans[tp],))
        ),
        sum(max(0, spans[tp].end - max(spans[tp].start, one.committed or 0)) for tp, one in states.items())
        + sum(end - start for start, end in new.values()),
    )


def _require_whole(
    states: Mapping[TopicPartition, PartitionState], spans: Mapping[TopicPartition, Span]
) -> None:
    cut = [tp for tp, one in states.items() if 0 < one.log_start == spans[tp].start]
    if cut:
        raise DataExpiredError(
            f"the broker has deleted the first {states[cut[0]].log_start:,} offsets of "
            f"{cut[0]}{f' and of {len(cut) - 1} more partitions' if cut[1:] else ''}, and some of them "
            "may be of this time"
        )


def _window_span(first: int | None, behind: int | None, log_end: int) -> Span:
    """Return the window's span in one partition; it may have no record in the window, or none behind it."""
    start = log_end if first is None else first
    return Span(start, max(start, log_end if behind is None else behind))


def _done_spans(one: PartitionState, spans: Span) -> tuple[Span, ...]:
    """Return the processed part of these offsets."""
    below = intersection((spans,), (Span(one.log_start, one.committed or 0),))
    return difference(below, (*one.outstanding, *one.written_off))
