"""Audit a group: read its commit logs and its ledger, and certify that every offset is in the table once.

Metadata only, unless a deep look is asked for: then Spark compares rows and records too. Never joins, never
commits, never writes a row. ``audit.certificate`` judges.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.audit.certificate import GroupCertificate, PartitionCertificate
from kafka_liveness_dagster.audit.overlaps import find_overlaps
from kafka_liveness_dagster.core.commit_metadata import CATCH_UP_SUFFIX
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import check_group_id, is_table_name, join_some
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.kafka.group_description import decode_partition_state
from kafka_liveness_dagster.kafka.partition_states import with_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.audit.queries import ComparisonScope
    from kafka_liveness_dagster.core.partition_state import PartitionState
    from kafka_liveness_dagster.core.sink_ledger import LedgerHistory, SinkLedger
    from kafka_liveness_dagster.kafka.admin import Cluster


class NothingToAuditError(InvalidSettingError):
    """No commit of the group, or no table that its rows go to."""


@dataclass(frozen=True)
class GroupAudit:
    """One audit of one group.

    The commit logs and the log's ends are read before the table, so the table of a group at work may be
    ahead of them.

    Args:
        cluster: where the group is.
        session: gives a Spark session of a server whose catalog has the table; not called for a sink.
        topics: only these; all that the group has committed to, and that the table has of another life,
            unless given.
        table: instead of the one that the catch-up commit log names.
        sink_ledger: the ledger of the custom sink that the rows go to.
    """

    cluster: Cluster
    group_id: str
    session: Callable[[], SparkSession]
    _: KW_ONLY
    topics: Sequence[str] = ()
    table: str | None = None
    sink_ledger: SinkLedger[Any] | None = None

    def certificate(self, *, deep: bool = False) -> GroupCertificate:
        """Return the certificate as of now.

        Raises:
            NothingToAuditError: nobody says what to audit; with what helps.
            KafkaLivenessError: broker, Spark or table could not be asked.
        """
        check_group_id(self.group_id)
        commits = self._commits()  # before the ledger is read: what is committed was written before that
        target = self._target(commits)
        is_table = self.sink_ledger is None and (self.table is not None or is_table_name(target))
        if deep and not is_table:
            raise NothingToAuditError(
                f"--deep compares rows of an Iceberg table, but the rows of group {self.group_id} go to the "
                f"sink {target}: leave it out, or name a table with --table"
            )
        ledger = self._table_ledger(target) if is_table else self.sink_ledger
        history = ledger.prove() if ledger is not None else None
        if history is not None:
            commits |= self._recreated_partitions(history, commits)
            states = {tp: replace(one, ledger_entry=history.ledger.entry(tp)) for tp, one in commits.items()}
        else:
            states = commits if ledger is None else with_ledger(commits, ledger)
        if not states:
            raise self._nothing_to_audit_error()
        twice = find_overlaps(history.commits) if history is not None else {}
        partitions = [
            PartitionCertificate(
                tp,
                one,
                rewritten=twice.get(tp, ()),
                group_id=self.group_id if ledger is not None else "",
                is_table=is_table,
            )
            for tp, one in states.items()
        ]
        snapshot_id = history.snapshot_id if history is not None else None
        if deep and snapshot_id is not None:
            partitions = self._compare_rows(target, snapshot_id, partitions)
        return GroupCertificate(
            self.group_id,
            target,
            is_table,
            snapshot_id=snapshot_id,
            partitions=tuple(partitions),
            history=history.commits if history is not None else (),
        )

    def _target(self, commits: Mapping[TopicPartition, PartitionState]) -> str:
        """Return where the rows go: as an option has it, else as the catch-up commit log names it.

        Raises:
            NothingToAuditError: the commits name none, several, or another one than the sink.
        """
        if self.table is not None:
            return self.table
        if self.sink_ledger is None:
            return _audited_target(self.group_id, commits)
        target: str = self.sink_ledger.target
        named = sorted({one.catch_up_log.target for one in commits.values() if one.catch_up_log.target})
        if named not in ([], [target]):
            raise NothingToAuditError(
                f"the rows of group {self.group_id} go to {', '.join(named)}, not to the sink {target}. Fix: "
                "name the asset whose group this is with --sink"
            )
        return target

    def _table_ledger(self, target: str) -> SinkLedger[Any]:
        from kafka_liveness_dagster.spark.table.ledger import TableLedger  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415

        return TableLedger(IcebergTable(target), self.session)

    def _commits(self) -> dict[TopicPartition, PartitionState]:
        """What both logs say of the partitions that one of them names."""
        asked = self.cluster.partitions(self.topics or self.cluster.topics())
        live, catch_up = (
            self.cluster.commits(name, asked) for name in (self.group_id, self.group_id + CATCH_UP_SUFFIX)
        )
        if not (live or catch_up or self.table or self.sink_ledger):
            raise self._nothing_to_audit_error()
        named = set(self.topics) or {tp.topic for tp in (*live, *catch_up)}
        return self.cluster.with_log_bounds(
            {tp: decode_partition_state(live.get(tp), catch_up.get(tp)) for tp in asked if tp.topic in named}
        )

    def _recreated_partitions(
        self, history: LedgerHistory, commits: Mapping[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, PartitionState]:
        """Return the partitions of recreated topics: the broker deleted their commits."""
        known = {tp.topic: entry.topic_id for tp, entry in history.ledger.entries.items()}
        rest = sorted(set(known) - {tp.topic for tp in commits} if not self.topics else ())
        there = set(self.cluster.topics()) if rest else set()
        ids = self.cluster.topic_ids([topic for topic in rest if topic in there])
        anew = [
            topic
            for topic in ids
            if not commits or (known[topic] and ids[topic] and known[topic] != ids[topic])
        ]
        partitions = self.cluster.partitions(anew) if anew else ()
        return self.cluster.with_log_bounds({tp: decode_partition_state(None, None) for tp in partitions})

    def _compare_rows(
        self, target: str, snapshot_id: int, partitions: list[PartitionCertificate]
    ) -> list[PartitionCertificate]:
        from kafka_liveness_dagster.audit.queries import ComparisonScope, compare_rows  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415

        judged = [p for p in partitions if p.start is not None]
        bounds = self.cluster.log_bounds(p.topic_partition for p in judged)
        compacted = _compacted_topics(self.cluster, {p.topic_partition.topic for p in judged})
        scopes: dict[TopicPartition, ComparisonScope] = {
            p.topic_partition: ComparisonScope(
                p.start or 0,
                p.state.committed or 0,
                p.done,
                topic_offsets=Span(*bounds[p.topic_partition]),
                compacted=p.topic_partition.topic in compacted,
            )
            for p in judged
        }
        if scopes:
            found = compare_rows(
                self.session(),
                IcebergTable(target),
                snapshot_id,
                scopes=scopes,
                kafka_options=self.cluster.settings.spark_options(),
            )
        else:
            found = {}
        return [replace(p, rows=found.get(p.topic_partition)) for p in partitions]

    def _nothing_to_audit_error(self) -> NothingToAuditError:
        of = f" for {', '.join(self.topics)}" if self.topics else ""
        return NothingToAuditError(
            f"there is nothing to audit: no offset of group {self.group_id!r} is committed{of} at "
            f"{self.cluster.settings.bootstrap_servers}. When its topic was deleted, or its offsets "
            "expired, the table still knows: name it with --table"
        )


def _audited_target(group_id: str, commits: Mapping[TopicPartition, PartitionState]) -> str:
    """Where the rows go, as the catch-up commit log says."""
    named = sorted({one.catch_up_log.target for one in commits.values() if one.catch_up_log.target})
    if len(named) == 1:
        return named[0]
    replaced = {tp: one.catch_up_log.external for tp, one in commits.items() if one.catch_up_log.external}
    if not named and replaced:
        raise NothingToAuditError(
            f"no commit of group {group_id} names the table that its rows go to: external commits replaced "
            f"the catch-up commit log, {group_id}{CATCH_UP_SUFFIX} "
            f"({join_some([f'{tp}, {one}' for tp, one in replaced.items()])}). Fix: name the table with "
            "--table; or start a live run, which rewrites the log of a group with a table"
        )
    if not named:
        raise NothingToAuditError(
            f"no commit of group {group_id} says where its rows go: it runs without table, with a sink that "
            "cannot be asked. Name the table with --table, or run the live lane once"
        )
    raise NothingToAuditError(
        f"the partitions of group {group_id} name several targets: {', '.join(named)}. The asset was given "
        "another table, or several assets share the group: name one with --table, and with --topic what "
        "goes there"
    )


def _compacted_topics(cluster: Cluster, topics: Collection[str]) -> set[str]:
    """The topics in whose middle records may vanish; none where the broker may not be asked."""
    from confluent_kafka import KafkaException  # noqa: PLC0415 - only for a deep look
    from confluent_kafka.admin import ConfigResource  # noqa: PLC0415

    from kafka_liveness_dagster.kafka.admin import REQUEST_SECONDS  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.clients import admin_client  # noqa: PLC0415

    asked = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    admin, _ = admin_client(cluster.settings)
    found = admin.describe_configs(asked, request_timeout=REQUEST_SECONDS) if asked else {}
    with suppress(KafkaException, KeyError):
        return {
            one.name for one, config in found.items() if "compact" in config.result()["cleanup.policy"].value
        }
    return set()
