"""Can it be certified that every offset of a group is in its table once? All witnesses are asked.

Metadata only, unless a deep look is asked for: then Spark compares rows and records too. Never joins, never commits,
never writes a row. ``audit.certificate`` judges.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.audit.certificate import Certificate, PartitionCertificate
from kafka_liveness_dagster.audit.snapshots import overlaps
from kafka_liveness_dagster.core.commit_metadata import CATCH_UP_SUFFIX
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import check_group_id, listed
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.partition_state import PartitionFacts
from kafka_liveness_dagster.kafka.group_description import both_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.audit.queries import History, Scope
    from kafka_liveness_dagster.core.commit_metadata import ExternalCommit
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.group_description import Commit
    from kafka_liveness_dagster.spark.table.table import IcebergTable

_TABLE_PARTS = 3  # catalog.namespace.table; a sink's name is a function's or a class's


class NothingToAuditError(InvalidSettingError):
    """No commit of the group, or no table that its rows go to."""


@dataclass(frozen=True)
class Audit:
    """One audit of one group.

    Args:
        cluster: where the group is.
        session: gives a Spark session of a server whose catalog has the table; called once, if at all.
        topics: only these; all that the group has committed to, and that the table has of another life, unless given.
        table: instead of the one that the second commit log names.
    """

    cluster: Cluster
    group_id: str
    session: Callable[[], SparkSession]
    topics: Sequence[str] = ()
    table: str | None = None

    def certificate(self, *, deep: bool = False) -> Certificate:
        """What the witnesses say now.

        Raises:
            NothingToAuditError: nobody says what to audit; with what helps.
            KafkaLivenessError: broker, Spark or table could not be asked.
        """
        check_group_id(self.group_id)
        commits = self._commits()  # before the table is asked: what is committed was written before that
        target = self.table or _target(self.group_id, commits)
        if target.count(".") < _TABLE_PARTS - 1 and self.table is None:
            return self._of_sink(target, commits, deep=deep)
        from kafka_liveness_dagster.audit.queries import history  # noqa: PLC0415 - pyspark only where it is used
        from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415

        table, session = IcebergTable(target), self.session()
        seen = history(session, table)
        commits |= self._of_another_life(seen, commits)
        if not commits:
            raise self._nothing()
        twice = overlaps(seen.writes)
        partitions = [
            PartitionCertificate(
                tp,
                replace(one.facts, account=seen.ledger.of(tp)),
                one.foreign,
                twice.get(tp, ()),
                group_id=self.group_id,
            )
            for tp, one in commits.items()
        ]
        if deep and seen.snapshot_id is not None:
            partitions = self._compared(session, table, seen.snapshot_id, partitions)
        return Certificate(self.group_id, target, True, seen.snapshot_id, tuple(partitions), seen.writes)

    def _commits(self) -> dict[TopicPartition, _Told]:
        """What both logs say of the partitions that one of them names."""
        asked = self.cluster.partitions(self.topics or self.cluster.topics())
        first, second = (self.cluster.commits(name, asked) for name in (self.group_id, self.group_id + CATCH_UP_SUFFIX))
        if not (first or second or self.table):
            raise self._nothing()
        named = set(self.topics) or {tp.topic for tp in (*first, *second)}
        return self._told([tp for tp in asked if tp.topic in named], first, second)

    def _told(
        self,
        partitions: Collection[TopicPartition],
        first: Mapping[TopicPartition, Commit],
        second: Mapping[TopicPartition, Commit],
    ) -> dict[TopicPartition, _Told]:
        bounds = self.cluster.log_bounds(partitions)
        ids = self.cluster.topic_ids({tp.topic for tp in partitions})
        return {tp: _Told.of(first.get(tp), second.get(tp), bounds[tp], ids[tp.topic]) for tp in partitions}

    def _of_another_life(self, seen: History, commits: Mapping[TopicPartition, _Told]) -> dict[TopicPartition, _Told]:
        """Partitions of topics made anew: the broker has deleted the commits with the topic, but the table knows."""
        known = {tp.topic: account.topic_id for tp, account in seen.ledger.accounts.items()}
        rest = sorted(set(known) - {tp.topic for tp in commits} if not self.topics else ())
        there = set(self.cluster.topics()) if rest else set()
        ids = self.cluster.topic_ids([topic for topic in rest if topic in there])
        anew = [topic for topic in ids if not commits or (known[topic] and ids[topic] and known[topic] != ids[topic])]
        return self._told(self.cluster.partitions(anew), {}, {}) if anew else {}

    def _of_sink(self, target: str, commits: Mapping[TopicPartition, _Told], *, deep: bool) -> Certificate:
        if deep:
            raise NothingToAuditError(
                f"--deep compares rows of an Iceberg table, but the rows of group {self.group_id} go to the sink "
                f"{target}: leave it out, or name a table with --table"
            )
        partitions = tuple(PartitionCertificate(tp, one.facts, one.foreign) for tp, one in commits.items())
        return Certificate(self.group_id, target, False, None, partitions)

    def _compared(
        self, session: SparkSession, table: IcebergTable, snapshot_id: int, partitions: list[PartitionCertificate]
    ) -> list[PartitionCertificate]:
        from kafka_liveness_dagster.audit.queries import Scope, compare  # noqa: PLC0415

        judged = [p for p in partitions if p.start is not None]
        bounds = self.cluster.log_bounds(p.at for p in judged)
        compacted = _compacted(self.cluster, {p.at.topic for p in judged})
        scopes: dict[TopicPartition, Scope] = {
            p.at: Scope(p.start or 0, p.facts.committed or 0, p.done, Span(*bounds[p.at]), p.at.topic in compacted)
            for p in judged
        }
        found = compare(session, table, snapshot_id, scopes, self.cluster.settings.spark()) if scopes else {}
        return [replace(p, rows=found.get(p.at)) for p in partitions]

    def _nothing(self) -> NothingToAuditError:
        of = f" for {', '.join(self.topics)}" if self.topics else ""
        return NothingToAuditError(
            f"there is nothing to audit: no offset of group {self.group_id!r} is committed{of} at "
            f"{self.cluster.settings.bootstrap_servers}. When its topic was deleted, or its offsets expired, the table "
            "still knows: name it with --table"
        )


@dataclass(frozen=True)
class _Told:
    """What the broker says of one partition, and the metadata that is not ours."""

    facts: PartitionFacts
    foreign: tuple[ExternalCommit, ...]

    @classmethod
    def of(cls, first: Commit | None, second: Commit | None, bounds: tuple[int, int], topic_id: str) -> _Told:
        mark, done, foreign = both_logs(first, second)
        committed = first.offset if first else None
        return cls(PartitionFacts(committed, mark, *bounds, second=done, topic_id=topic_id), foreign)


def _target(group_id: str, commits: Mapping[TopicPartition, _Told]) -> str:
    """Where the rows go, as the second commit log says."""
    named = sorted({one.facts.second.target for one in commits.values() if one.facts.second.target})
    if len(named) == 1:
        return named[0]
    replaced = {tp: one.facts.second.external for tp, one in commits.items() if one.facts.second.external}
    if not named and replaced:
        raise NothingToAuditError(
            f"no commit of group {group_id} names the table that its rows go to: external commits replaced the second "
            f"commit log, {group_id}{CATCH_UP_SUFFIX} ({listed([f'{tp}, {one}' for tp, one in replaced.items()])}). "
            "Fix: name the table with --table; or start a live run, which rewrites the log of a group with a table"
        )
    if not named:
        raise NothingToAuditError(
            f"no commit of group {group_id} says where its rows go: it runs without table, with a sink that cannot be "
            "asked. Name the table with --table, or run the live lane once"
        )
    raise NothingToAuditError(
        f"the partitions of group {group_id} name several targets: {', '.join(named)}. The asset was given another "
        "table, or several assets share the group: name one with --table, and with --topic what goes there"
    )


def _compacted(cluster: Cluster, topics: Collection[str]) -> set[str]:
    """The topics in whose middle records may vanish; none where the broker may not be asked."""
    from confluent_kafka import KafkaException  # noqa: PLC0415 - only for a deep look
    from confluent_kafka.admin import ConfigResource  # noqa: PLC0415

    from kafka_liveness_dagster.kafka.admin import REQUEST_SECONDS  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.clients import admin_client  # noqa: PLC0415

    asked = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    admin, _ = admin_client(cluster.settings)
    found = admin.describe_configs(asked, request_timeout=REQUEST_SECONDS) if asked else {}
    with suppress(KafkaException, KeyError):
        return {one.name for one, config in found.items() if "compact" in config.result()["cleanup.policy"].value}
    return set()
