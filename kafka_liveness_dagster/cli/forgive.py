"""Write off crash lag by hand: record it in Dagster first, then in the catch-up commit log.

Writes nothing for a range that is not pending. If the commit fails, a second event records that; no commit is
without its event.

A partition whose offsets are done, but that a later run failed to reprocess, is closed in Dagster alone: the
former rows stay, and no commit log changes.
"""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import dagster as dg

from kafka_liveness_dagster.cli.crash_lag_assets import crash_lag_asset, open_instance
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import check_group_id, format_count, join_some
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, difference, intersection, size
from kafka_liveness_dagster.core.partition_keys import is_key, is_replay, parse_key, stored_keys
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.catch_up.commit_log import CatchUpCommitLog, spans_by_partition
from kafka_liveness_dagster.kafka.partition_states import check_catch_up_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.kafka.settings import KafkaSettings

_CLIENT_ID = "kafka-liveness/write-off"
_KEPT_MESSAGE = "closed, earlier rows kept"


@dataclass(frozen=True)
class ForgiveRequest:
    """The ranges to write off, and the partitions to close.

    Attributes:
        ranges: the pending parts of the named ranges.
        expired: the parts of them that the broker has deleted.
        kept_keys: partitions whose offsets are done, to close with their existing rows.
    """

    group_id: str
    reason: str
    ranges: tuple[OffsetRange, ...]
    _: KW_ONLY
    expired: tuple[OffsetRange, ...]
    kept_keys: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of offsets, an upper bound of the number of records."""
        return sum(r.size for r in self.ranges)

    def lines(self) -> list[str]:
        """Return a line for each range with the state of its data, and for each partition to close."""
        pending = [f"{r}: {r.size:,} offsets pending, {self._remaining_data(r)}" for r in self.ranges]
        return [
            *pending,
            *(f"{key}: processed before; the former rows stay in the table" for key in self.kept_keys),
        ]

    @property
    def question(self) -> str:
        """The question of the confirmation."""
        if not self.ranges:
            return "Close these partitions and keep the former rows?"
        return f"Count {format_count(self.size, 'offset')} as done, unprocessed?"

    @property
    def outcome(self) -> str:
        """The outcome in one line."""
        forgiven = [f"{self.size:,} offsets written off"] if self.ranges else []
        return "; ".join([*forgiven, *(f"closed {key}" for key in self.kept_keys)])

    def as_json(self) -> dict[str, Any]:
        """Return the group, and its ranges and partitions that are closed."""
        return {
            "group": self.group_id,
            "reason": self.reason,
            "written_off": [str(r) for r in self.ranges],
            "offsets": self.size,
            "closed_partitions": list(self.kept_keys),
        }

    def _remaining_data(self, one: OffsetRange) -> str:
        gone = size(intersection([one.span], [r.span for r in self.expired if r.overlaps(one)]))
        if gone == 0:
            return "all of them still in the log: a backfill could process them"
        return "expired" if gone == one.size else f"{gone:,} of them expired, the others are still in the log"


def validate(
    kafka: KafkaSettings, group_id: str, ranges: Sequence[str], reason: str, record: DagsterRecord
) -> ForgiveRequest:
    """Read and check the ranges to write off; write nothing.

    Args:
        kafka: settings of the cluster.
        group_id: the live lane's group.
        ranges: pending ranges, or partitions of the crash lag asset.
        reason: reason of the write-off, for people.
        record: record in Dagster, with the asset's partitions.

    Raises:
        InvalidSettingError: a range is mistyped, is not pending (``NotPendingError``), or is done already; no
            reason.
        ExternalCommitError: an external commit replaced the catch-up commit log, so what is done is unknown.
    """
    check_group_id(group_id)
    if not reason.strip():
        raise InvalidSettingError(
            "--reason is empty. Fix: give the reason why these offsets will not be processed."
        )
    ranges = record.stored_keys(ranges)
    kept = [key for key in ranges if is_replay(key)]
    for key in kept:
        record.require_closable(key)
    named = {key: parse_key(key) for key in ranges if key not in kept}
    asked = spans_by_partition(named.values())
    involved = list(spans_by_partition(map(parse_key, ranges)))
    cluster = Cluster(kafka)
    cluster.partitions(sorted({tp.topic for tp in involved}))
    second = CatchUpCommitLog(kafka, group_id, _CLIENT_ID)
    try:
        states = cluster.partition_states(group_id, involved)
        check_catch_up_log(cluster, group_id, states)
        second.require_pending(asked, states)
    finally:
        second.close()
    for key in kept:
        tp = parse_key(key).topic_partition
        span = parse_key(key).span
        if pending := difference(intersection(states[tp].outstanding, (span,)), asked.get(tp, ())):
            raise InvalidSettingError(
                f"{key} cannot be closed: {join_some([OffsetRange(*tp, *one) for one in pending])} of it is "
                "pending. Nothing was written. Fix: materialize the partitions of these ranges first, "
                "or name the ranges, too."
            )
    for key, one in named.items():
        if intersection(states[one.topic_partition].outstanding, (one.span,)):
            continue
        if not record.has_failed_again(key):
            raise InvalidSettingError(
                f"{one} is not pending in group {group_id}: it is done already or was never skipped. Nothing "
                "was written."
            )
        kept.append(key)
    forgiven = []
    expired = []
    for tp, spans in asked.items():
        found = intersection(states[tp].outstanding, spans)
        forgiven += [OffsetRange(*tp, *span) for span in found]
        expired += [OffsetRange(*tp, *span) for span in intersection(found, [Span(0, states[tp].log_start)])]
    return ForgiveRequest(
        group_id, reason.strip(), tuple(forgiven), expired=tuple(expired), kept_keys=tuple(kept)
    )


@dataclass(frozen=True)
class DagsterRecord:
    """The crash lag asset in Dagster that gets the events of a write-off; empty without Dagster."""

    instance: dg.DagsterInstance | None
    asset: dg.AssetKey | None

    @classmethod
    def find(cls, group_id: str, asset: str | None) -> DagsterRecord:
        """Return the named crash lag asset, or the only one of this group in Dagster.

        Raises:
            InvalidSettingError: no asset or several assets fit, or there is no Dagster to write to.
        """
        if (instance := open_instance()) is None:
            if asset is not None:
                raise InvalidSettingError(
                    f"--asset {asset} needs Dagster. Nothing was written. Fix: set DAGSTER_HOME to the "
                    "instance that has the asset."
                )
            return cls(None, None)
        outcome = "Nothing was written. To write off without an event in Dagster, unset DAGSTER_HOME."
        return cls(instance, crash_lag_asset(instance, group_id, asset, outcome=outcome))

    def stored_keys(self, keys: Sequence[str]) -> list[str]:
        """Return the keys as Dagster has them, each once: it may have partitions of an earlier version."""
        return stored_keys(keys, self._partitions())

    def require_closable(self, key: str) -> None:
        """Check that the partition of a replay can be closed.

        Raises:
            InvalidSettingError: Dagster has no such partition, it is materialized, or a run processes it.
        """
        if self.instance is None or self.asset is None:
            raise InvalidSettingError(
                f"{key} is the partition of a replay, and needs Dagster. Nothing was written. Fix: set "
                "DAGSTER_HOME to the instance that has the partition."
            )
        name = self.asset.to_user_string()
        if key not in self._partitions():
            raise InvalidSettingError(
                f"{name} has no partition {key}. Nothing was written. Fix: copy its name from the page of "
                "the asset."
            )
        if (status := self._status(key)) in {"MATERIALIZED", "IN_PROGRESS"}:
            why = "it is materialized" if status == "MATERIALIZED" else "a run is processing it"
            raise InvalidSettingError(
                f"Partition {key} of {name} cannot be closed: {why}. Nothing was written."
            )

    def has_failed_again(self, key: str) -> bool:
        """Return whether the partition was materialized before, and its latest run failed."""
        if self.instance is None or self.asset is None or key not in self._partitions():
            return False
        return self._status(key) == "FAILED" and key in self.instance.get_materialized_partitions(self.asset)

    def describe(self, request: ForgiveRequest) -> str:
        """Return where Dagster will record the write-off."""
        if self.asset is not None and not request.ranges:
            return f"a materialization of {self.asset.to_user_string()} will record it"
        if self.asset is None:
            return "DAGSTER_HOME is not set: Dagster will get no event with the user and the reason"
        keys = [key for r in request.ranges for key in self._keys_of(r)]
        on = f", partitions {', '.join(keys)} (materialize them afterwards: they end at once)" if keys else ""
        return f"an event of {self.asset.to_user_string()} will record it{on}"

    def write(self, request: ForgiveRequest, outcome: str) -> None:
        """Report one event for each range and each partition that overlaps it."""
        if self.instance is None or self.asset is None:
            return
        for r in request.ranges:
            for key in (*self._keys_of(r),) or (None,):
                self.instance.report_runless_asset_event(
                    self._event(self.asset, request, r, key=key, outcome=outcome)
                )

    def close(self, request: ForgiveRequest) -> None:
        """Materialize the partitions that keep their rows, so that none is failed or missing."""
        if self.instance is None or self.asset is None:
            return
        for key in request.kept_keys:
            one = parse_key(key)
            self.instance.report_runless_asset_event(
                dg.AssetMaterialization(
                    self.asset,
                    partition=key,
                    description=(
                        f"closed by {_current_user()}, with the rows that were there before: {request.reason}"
                    ),
                    metadata={**_event_metadata(request, one), "state": _KEPT_MESSAGE},
                )
            )

    def _partitions(self) -> list[str]:
        if self.instance is None or self.asset is None:
            return []
        return list(self.instance.get_dynamic_partitions(self.asset.to_python_identifier()))

    def _status(self, key: str) -> str:
        """Return ``FAILED``, ``MATERIALIZED`` or ``IN_PROGRESS``; empty for a partition without a run."""
        if self.instance is None or self.asset is None:
            return ""
        partitions = dg.DynamicPartitionsDefinition(name=self.asset.to_python_identifier())
        found = (self.instance.get_status_by_partition(self.asset, [key], partitions) or {}).get(key)
        return found.value if found else ""

    def _keys_of(self, one: OffsetRange) -> list[str]:
        if self.instance is None or self.asset is None:
            return []
        done = self.instance.get_materialized_partitions(self.asset)
        known = self._partitions()
        return sorted(
            key for key in known if key not in done and is_key(key) and parse_key(key).overlaps(one)
        )

    @staticmethod
    def _event(
        asset: dg.AssetKey, asked: ForgiveRequest, one: OffsetRange, key: str | None, outcome: str
    ) -> dg.AssetObservation:
        return dg.AssetObservation(
            asset,
            partition=key,
            description=f"{one.size:,} pending offsets {outcome} by {_current_user()}: {asked.reason}",
            metadata={
                **_event_metadata(asked, one),
                "expired_offsets": size(r.span for r in asked.expired if r.overlaps(one)),
            },
        )


def write_off(kafka: KafkaSettings, request: ForgiveRequest, record: DagsterRecord) -> None:
    """Write the event, then the catch-up commit log; then close the partitions that keep their rows.

    Raises:
        CommitRefusedError: the broker refused; the ranges stay pending, and a second event records that.
    """
    if request.ranges:
        second = CatchUpCommitLog(kafka, request.group_id, _CLIENT_ID)
        try:
            record.write(request, "written off")
            second.write_off(spans_by_partition(request.ranges))
        except Exception as error:
            record.write(request, f"NOT written off ({error})")
            raise
        finally:
            second.close()
    record.close(request)


def _event_metadata(asked: ForgiveRequest, one: OffsetRange) -> dict[str, str | int]:
    """Return the metadata of an event: the group, the range, and the user, time and reason."""
    return {
        "group": asked.group_id,
        "range": str(one),
        "offsets": one.size,
        "written_off_by": _current_user(),
        "written_off_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "reason": asked.reason,
    }


def _current_user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid {os.getuid()}"  # a container's user without a name
    return f"{user}@{socket.gethostname()}"
