"""Who closes crash lag by hand, and where is that written? In the second commit log, and before it in Dagster.

Nothing is written of a range that is not owed. An event that stands without its commit says so in a second event;
a commit without its event there is not.
"""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import check_group_id
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, intersection, size
from kafka_liveness_dagster.core.partition_keys import is_key, range_of
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.second_log import SecondLog, by_partition
from kafka_liveness_dagster.kafka.witness import check_second_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.kafka.config import KafkaSettings

_CLIENT_ID = "kafka-liveness/forgive"
_ENDING = "_crash_lag"


@dataclass(frozen=True)
class Asked:
    """What is to be forgiven: the owed part of the ranges asked for; ``expired`` of it exists no more."""

    group_id: str
    reason: str
    ranges: tuple[OffsetRange, ...]
    expired: tuple[OffsetRange, ...]

    @property
    def size(self) -> int:
        """How many offsets, an upper bound on records."""
        return sum(r.size for r in self.ranges)

    def told(self) -> list[str]:
        """A line for each range, with what is left of its data."""
        return [f"{r}: {r.size:,} offsets owed, {self._left(r)}" for r in self.ranges]

    def _left(self, one: OffsetRange) -> str:
        gone = size(intersection([one.span], [r.span for r in self.expired if r.overlaps(one)]))
        if gone == 0:
            return "all of them still in the log: a backfill could process them"
        return "expired" if gone == one.size else f"{gone:,} of them expired, the others are still in the log"


def examine(kafka: KafkaSettings, group_id: str, ranges: Sequence[str], reason: str) -> Asked:
    """Read and check what is to be forgiven; writes nothing.

    Raises:
        InvalidSettingError: a range is mistyped, is not owed (``NotOwedError``), or is done already; no reason.
        ForeignCommitError: an external commit replaced the second log, so what is done is unknown.
    """
    check_group_id(group_id)
    if not reason.strip():
        raise InvalidSettingError("--reason is empty: say why nobody will process these offsets")
    asked = by_partition(range_of(text) for text in ranges)
    cluster = Cluster(kafka)
    cluster.partitions(sorted({tp.topic for tp in asked}))
    second = SecondLog(kafka, group_id, _CLIENT_ID)
    try:
        facts = cluster.facts(group_id, list(asked))
        check_second_log(cluster, group_id, facts)
        second.check_owed(asked, facts)
    finally:
        second.close()
    owed, expired = [], []
    for tp, spans in asked.items():
        found = intersection(facts[tp].outstanding, spans)
        if nothing := next((span for span in spans if not intersection(found, (span,))), None):
            raise InvalidSettingError(
                f"{OffsetRange(*tp, *nothing)} is not owed by group {group_id}, it is done already or was never "
                "skipped: there is nothing to forgive; nothing was written"
            )
        owed += [OffsetRange(*tp, *span) for span in found]
        expired += [OffsetRange(*tp, *span) for span in intersection(found, [Span(0, facts[tp].log_start)])]
    return Asked(group_id, reason.strip(), tuple(owed), tuple(expired))


@dataclass(frozen=True)
class Audit:
    """Where it is written who forgave what: a crash lag asset in Dagster, or nowhere."""

    instance: dg.DagsterInstance | None
    asset: dg.AssetKey | None

    @classmethod
    def of(cls, group_id: str, asset: str | None) -> Audit:
        """The crash lag asset named, else the one that Dagster knows of this group.

        Raises:
            InvalidSettingError: it cannot be told which, or there is no Dagster to write to.
        """
        if not os.environ.get("DAGSTER_HOME"):
            if asset is not None:
                raise InvalidSettingError(
                    f"--asset {asset} needs Dagster: set DAGSTER_HOME to the instance that has it; nothing was written"
                )
            return cls(None, None)
        instance = dg.DagsterInstance.get()
        known = [key for key in instance.all_asset_keys() if key.path[-1].endswith(_ENDING)]
        if asset is None:
            found = [key for key in known if _group_of(instance, key) == group_id]
        else:
            found = [key for key in known if key == dg.AssetKey.from_user_string(asset)]
        if len(found) == 1:
            return cls(instance, found[0])
        names = ", ".join(sorted(key.to_user_string() for key in known)) or "none"
        wanted = f"called {asset}" if asset else f"of group {group_id}"
        raise InvalidSettingError(
            f"Dagster knows {len(found)} crash lag assets {wanted}: name one with --asset (it has: {names}). To "
            "forgive without a trace in Dagster, unset DAGSTER_HOME. Nothing was written"
        )

    def told(self, asked: Asked) -> str:
        """Where it will be written."""
        if self.asset is None:
            return "DAGSTER_HOME is not set: only the broker will know of it, not who forgave it, nor why"
        keys = [key for r in asked.ranges for key in self._keys(r)]
        on = f", partitions {', '.join(keys)} (materialize them afterwards: they end at once)" if keys else ""
        return f"an event of {self.asset.to_user_string()} will tell of it{on}"

    def write(self, asked: Asked, outcome: str) -> None:
        """One event for each range and partition that holds some of it."""
        if self.instance is None or self.asset is None:
            return
        for r in asked.ranges:
            for key in (*self._keys(r),) or (None,):
                self.instance.report_runless_asset_event(self._event(self.asset, asked, r, key, outcome))

    def _keys(self, one: OffsetRange) -> list[str]:
        if self.instance is None or self.asset is None:
            return []
        done = self.instance.get_materialized_partitions(self.asset)
        known = self.instance.get_dynamic_partitions(self.asset.to_python_identifier())
        return sorted(key for key in known if key not in done and is_key(key) and range_of(key).overlaps(one))

    @staticmethod
    def _event(
        asset: dg.AssetKey, asked: Asked, one: OffsetRange, key: str | None, outcome: str
    ) -> dg.AssetObservation:
        return dg.AssetObservation(
            asset,
            partition=key,
            description=f"{one.size:,} owed offsets {outcome} by {_who()}: {asked.reason}",
            metadata={
                "group": asked.group_id,
                "range": str(one),
                "offsets": one.size,
                "expired_offsets": size(r.span for r in asked.expired if r.overlaps(one)),
                "forgiven_by": _who(),
                "forgiven_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "reason": asked.reason,
            },
        )


def forgive(kafka: KafkaSettings, asked: Asked, audit: Audit) -> None:
    """Write the event, then the second commit log.

    Raises:
        CommitRefusedError: the broker refused; the ranges stay owed, and a second event says so.
    """
    second = SecondLog(kafka, asked.group_id, _CLIENT_ID)
    try:
        audit.write(asked, "forgiven")
        second.tell(by_partition(asked.ranges))
    except Exception as error:
        audit.write(asked, f"NOT forgiven after all ({error})")
        raise
    finally:
        second.close()


def _group_of(instance: dg.DagsterInstance, key: dg.AssetKey) -> str | None:
    """The group whose crash lag the asset is: the sensor and the runs write it on every event."""
    seen = [record.asset_observation for record in instance.fetch_observations(key, limit=1).records]
    made = [record.asset_materialization for record in instance.fetch_materializations(key, limit=1).records]
    groups = (event.metadata["group"].value for event in (*seen, *made) if event and "group" in event.metadata)
    return next(map(str, groups), None)


def _who() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid {os.getuid()}"  # a container's user without a name
    return f"{user}@{socket.gethostname()}"
