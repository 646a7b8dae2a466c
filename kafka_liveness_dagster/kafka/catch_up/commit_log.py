"""Record that pending offsets are done in KIP-333's catch-up commit log.

The log is the committed offsets of ``G.catch-up``. Several runs may write it at once, and none of them is a
member of a group. So each write is read back, and repeated if another run's write replaced it. A write that
is lost for good costs rework, never data. Never writes the live commit log.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from confluent_kafka import Consumer

from kafka_liveness_dagster.core.bad_records import BadRecordError
from kafka_liveness_dagster.core.commit_metadata import (
    CATCH_UP_SUFFIX,
    CatchUpCommitMetadata,
    ExternalCommit,
    GroupOrigin,
    external_commit_error,
)
from kafka_liveness_dagster.core.errors import InvalidSettingError, KafkaLivenessError
from kafka_liveness_dagster.core.names import join_some
from kafka_liveness_dagster.core.offsets import (
    OffsetRange,
    Span,
    TopicPartition,
    difference,
    intersection,
    union,
)
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.clients import create_client
from kafka_liveness_dagster.kafka.committer import Committer
from kafka_liveness_dagster.kafka.errors import CommitRefusedError, to_package_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from logging import Logger

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.partition_state import PartitionState
    from kafka_liveness_dagster.kafka.group_description import CommittedOffset
    from kafka_liveness_dagster.kafka.settings import KafkaSettings

_MAX_WRITES = 5
_COMMIT_TIMEOUT_SECONDS = 30.0
REWRITTEN = "Rewrote the catch-up commit log of group %s, %d external commits had replaced it: %s"
"""Logged with the group, the number, and each partition with its offset and metadata."""


class NotPendingError(InvalidSettingError):
    """A requested range is not pending in the group."""


class CatchUpCommitLog:
    """The catch-up commit log of one group."""

    def __init__(
        self, kafka: KafkaSettings, group_id: str, client_id: str, target: str | None = None
    ) -> None:
        config = kafka.committer_config(group_id + CATCH_UP_SUFFIX, f"{client_id}/catch-up")
        self._cluster = Cluster(kafka)
        self._kafka = kafka
        self._group_id = group_id
        self._target = target
        self._client = create_client(Consumer, config)
        group = group_id + CATCH_UP_SUFFIX
        self._committer = Committer(
            self._client, group, kafka.bootstrap_servers, seconds=_COMMIT_TIMEOUT_SECONDS
        )
        self._last_written: dict[TopicPartition, CatchUpCommitMetadata] = {}

    def mark_done(self, ranges: Iterable[OffsetRange], may_go_on: Callable[[], None] = lambda: None) -> None:
        """Record that pending ranges are done; ranges that are not pending any more stay unchanged.

        Raises:
            CommitRefusedError: the record did not last; the ranges stay pending.
            ExternalCommitError: an external commit replaced the log, and this process has not read it before.
        """
        done = spans_by_partition(ranges)
        for _ in range(_MAX_WRITES):
            may_go_on()
            states = self._partition_states(list(done))
            missing = {tp: spans for tp, spans in done.items() if intersection(states[tp].outstanding, spans)}
            if not missing:
                return
            logs = {
                tp: states[tp].catch_up_log.mark_done(states[tp].pending_by_live_log, spans)
                for tp, spans in missing.items()
            }
            self._commit(
                {tp: replace(log, origin=log.origin or states[tp].origin) for tp, log in logs.items()}
            )
        raise self._lost_writes_error("done")

    def require_room(self, batch: Batch) -> None:
        """Check that the log can record which offsets of a batch are done and which are not.

        Raises:
            BadRecordError: the commit metadata has no room; nothing was written.
        """
        done = spans_by_partition(batch.processed)
        for tp, state in self._partition_states(list(done)).items():
            log = state.catch_up_log.mark_done(state.pending_by_live_log, done[tp])
            log = replace(log, origin=log.origin or state.origin)
            if CatchUpCommitMetadata.decode(log.watermark, log.encode()).done != log.done:
                raise no_room_error(batch.skipped)

    def write(
        self, logs: Mapping[TopicPartition, tuple[CatchUpCommitMetadata, CatchUpCommitMetadata]]
    ) -> None:
        """Write these logs where they change: ``{tp: (before, after)}``.

        An external commit is always replaced.

        Raises:
            CommitRefusedError: the broker refused.
        """
        self._last_written.update({tp: after for tp, (_, after) in logs.items()})
        changed = {tp: after for tp, (before, after) in logs.items() if _has_changed(before, after)}
        if changed:
            self._commit(changed)

    def write_off(
        self, ranges: Mapping[TopicPartition, tuple[Span, ...]], may_go_on: Callable[[], None] = lambda: None
    ) -> None:
        """Record that offsets are closed without having been processed: written off, or lost and reported.

        The same write marks the pending ones as done. So no offset is done without this record, whenever this
        process dies.

        Raises:
            CommitRefusedError: the broker refused, or other runs' writes replaced the record.
            ExternalCommitError: an external commit replaced the log, and this process has not read it before.
        """
        if not self._update(ranges, _with_written_off, may_go_on):
            raise self._lost_writes_error("written off")

    def mark_missing_rows(
        self, ranges: Iterable[OffsetRange], log: Logger, topic_ids: Mapping[str, str]
    ) -> None:
        """Record that the table lost rows of these offsets, as the last step of the run that found it.

        A later run may not find it, because the snapshots that show it may expire. Logs a failure and raises
        nothing, because the error of the run is more specific. For a topic that was recreated since nothing
        is recorded, because the rows were of another log.

        Args:
            ranges: offsets whose rows are missing.
            log: log of the run.
            topic_ids: ids of the topics at the run's first read.
        """
        failed = "The missing rows could not be recorded in the catch-up commit log"
        try:
            spans = self._of_same_topics(spans_by_partition(ranges), topic_ids)
            if spans and not self._update(spans, _with_missing_rows):
                log.error("%s: other runs replaced its write %d times", failed, _MAX_WRITES)
        except KafkaLivenessError:
            log.exception(failed)

    def change_target(self, partitions: Sequence[TopicPartition], target: str) -> dict[TopicPartition, str]:
        """Record that the commits are about ``target`` from now on; return their former targets.

        Logs without a target stay so; the next run with a table records its target.

        Raises:
            CommitRefusedError: the broker refused.
        """
        found = self._cluster.commits(self._group_id + CATCH_UP_SUFFIX, partitions)
        logs = {tp: self._decode(tp, commit) for tp, commit in found.items()}
        moved = {tp: log for tp, log in logs.items() if log.target not in {None, target}}
        self.write({tp: (log, replace(log, target=target)) for tp, log in moved.items()})
        return {tp: log.target or "" for tp, log in moved.items()}

    def recommit(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ExternalCommit]:
        """Commit the log again, because the offsets of a group without members expire.

        A commit that is missing or was replaced is written as it was last read.

        Returns:
            The external commits that had replaced the log.
        """
        if not partitions:
            return {}
        found = self._cluster.commits(self._group_id + CATCH_UP_SUFFIX, partitions)
        now = {tp: self._decode(tp, commit) for tp, commit in found.items()}
        self._last_written.update({tp: log for tp, log in now.items() if log.external is None})
        self._commit({tp: self._last_written[tp] for tp in partitions if tp in self._last_written})
        return {
            tp: log.external
            for tp, log in now.items()
            if log.external is not None and tp in self._last_written
        }

    def require_pending(
        self,
        asked: Mapping[TopicPartition, tuple[Span, ...]],
        states: Mapping[TopicPartition, PartitionState],
    ) -> None:
        """Check that no requested range lies above the live commit log, where no live lane skipped offsets.

        Such a range was mistyped, or the group's offsets were reset and the live lane will process it.

        Raises:
            NotPendingError: with the pending ranges.
        """
        for tp, spans in asked.items():
            first = states[tp].committed or 0
            if unknown := difference(states[tp].not_done(spans), (Span(0, first),)):
                raise NotPendingError(
                    f"{OffsetRange(*tp, *unknown[0])} is not pending in group {self._group_id}: its "
                    f"live lane is at {first}, and the pending ranges of {tp} are "
                    f"{', '.join(map(str, states[tp].outstanding)) or 'none'}. Nothing was processed. "
                    "Fix: delete the partition if a person added it. If the group's offsets were reset, "
                    "the live lane processes the range."
                )

    def close(self) -> None:
        """Disconnect; there is no group to leave."""
        if not self._committer.timed_out:
            self._client.close()

    def _decode(self, tp: TopicPartition, commit: CommittedOffset) -> CatchUpCommitMetadata:
        log = CatchUpCommitMetadata.read(commit.offset, commit.metadata)
        if log.external is not None and log.external.is_from_newer_version:
            raise external_commit_error(
                self._group_id, tp, log.external, servers=self._kafka.bootstrap_servers
            )
        return log

    def _partition_states(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionState]:
        """Return both commit logs now, with this process's last write in place of an external commit.

        Done offsets are left out of it, because they may be pending again at the partition's owner. A deleted
        log gets its target again, because a log without a target is not compared with the table.
        """
        states = {
            tp: replace(
                one, catch_up_log=replace(one.catch_up_log, target=one.catch_up_log.target or self._target)
            )
            for tp, one in self._cluster.partition_states(self._group_id, partitions).items()
        }
        for tp, one in states.items():
            if (external := one.catch_up_log.external) is None:
                continue
            if (seen := self._last_written.get(tp)) is None or external.is_from_newer_version:
                raise external_commit_error(
                    self._group_id, tp, external, servers=self._kafka.bootstrap_servers
                )
            states[tp] = replace(one, catch_up_log=replace(seen, watermark=0, done=(), external=external))
        return states

    def _update(
        self,
        spans: Mapping[TopicPartition, tuple[Span, ...]],
        changed: Callable[[PartitionState, tuple[Span, ...]], CatchUpCommitMetadata],
        may_go_on: Callable[[], None] = lambda: None,
    ) -> bool:
        """Write the changed logs of ``spans`` until they are read back; return whether that succeeded."""
        for _ in range(_MAX_WRITES):
            may_go_on()
            states = self._partition_states(list(spans))
            logs = {tp: (one.catch_up_log, changed(one, spans[tp])) for tp, one in states.items()}
            if not any(_has_changed(before, after) for before, after in logs.values()):
                return True
            self.write(logs)
        return False

    def _of_same_topics(
        self, spans: Mapping[TopicPartition, tuple[Span, ...]], topic_ids: Mapping[str, str]
    ) -> dict[TopicPartition, tuple[Span, ...]]:
        now = self._cluster.topic_ids({tp.topic for tp in spans})
        recreated = {
            topic for topic, known in topic_ids.items() if known and now.get(topic) and known != now[topic]
        }
        return {tp: found for tp, found in spans.items() if tp.topic not in recreated}

    def _lost_writes_error(self, what: str) -> CommitRefusedError:
        return CommitRefusedError(
            f"the catch-up commit log {self._group_id + CATCH_UP_SUFFIX} lost {_MAX_WRITES} writes to other "
            f"runs. The offsets that were {what} stay pending. Fix: run their backfill again."
        )

    def _commit(self, logs: Mapping[TopicPartition, CatchUpCommitMetadata]) -> None:
        offsets = {tp: (second.watermark, second.encode()) for tp, second in logs.items()}
        if (error := self._committer.commit(offsets)) is not None:
            raise to_package_error(
                error, f"committing to {self._group_id + CATCH_UP_SUFFIX}", self._kafka.bootstrap_servers
            )


def _with_written_off(state: PartitionState, reported: tuple[Span, ...]) -> CatchUpCommitMetadata:
    """Return the catch-up commit log with these offsets written off, and their pending ones done."""
    log = state.catch_up_log
    pending = intersection(state.outstanding, reported)
    recorded = log.mark_done(state.pending_by_live_log, pending) if pending else log
    return replace(recorded, written_off=union((*log.written_off, *reported)), origin=_group_origin(state))


def _with_missing_rows(state: PartitionState, found: tuple[Span, ...]) -> CatchUpCommitMetadata:
    """Return the log with these offsets as missing rows; pending ones are no longer done."""
    committed = intersection(found, (Span(0, state.committed or 0),))
    if not committed:  # the commits were deleted, perhaps with the topic
        return state.catch_up_log
    log = state.catch_up_log.reopen(intersection(committed, state.pending_by_live_log))
    return replace(
        log,
        missing=union((*log.missing, *difference(committed, state.pending_by_live_log))),
        origin=_group_origin(state),
    )


def _group_origin(state: PartitionState) -> GroupOrigin:
    # Commits without an origin do not record where the group began, so no offset below is compared with the
    # table
    return state.catch_up_log.origin or state.origin or GroupOrigin(state.committed or 0, state.topic_id)


def _has_changed(before: CatchUpCommitMetadata, after: CatchUpCommitMetadata) -> bool:
    return before.external is not None or (before.watermark, before.encode()) != (
        after.watermark,
        after.encode(),
    )


def warn_about_external_commits(
    log: Logger, group_id: str, found: Mapping[TopicPartition, ExternalCommit | None]
) -> None:
    """Log the external commits that were replaced, if there were any."""
    replaced = [f"{tp}, {external}" for tp, external in found.items() if external is not None]
    if replaced:
        log.warning(
            REWRITTEN, f"{group_id} ({group_id}{CATCH_UP_SUFFIX})", len(replaced), join_some(replaced)
        )


def no_room_error(left_out: Iterable[OffsetRange]) -> BadRecordError:
    """Return the error for skipped offsets that the commit metadata has no room for."""
    outcome = (
        "They were not quarantined, because the group has too many pending ranges. Nothing of their "
        "batch was written or committed. Fix: correct the transform, or materialize or "
        "write off crash lag partitions first"
    )
    return BadRecordError(left_out, "", outcome)


def spans_by_partition(ranges: Iterable[OffsetRange]) -> dict[TopicPartition, tuple[Span, ...]]:
    """Return the same offsets, as the fewest spans of each partition."""
    found: dict[TopicPartition, tuple[Span, ...]] = {}
    for r in sorted(ranges):
        found[r.topic_partition] = union((*found.get(r.topic_partition, ()), r.span))
    return found
