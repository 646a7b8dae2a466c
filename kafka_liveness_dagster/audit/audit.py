"""Audit a group: read its commit logs and its ledger, and certify that every offset is in the table once.

Reads metadata. A deep audit also lets Spark compare the rows with the records. ``audit.certificate`` judges.
Never joins the group, commits an offset or writes a row.
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
from kafka_liveness_dagster.kafka.group_status import NoSuchGroupError
from kafka_liveness_dagster.kafka.partition_states import with_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.audit.queries import ComparisonScope
    from kafka_liveness_dagster.core.partition_state import PartitionState
    from kafka_liveness_dagster.core.sink_ledger import LedgerHistory, SinkLedger
    from kafka_liveness_dagster.kafka.admin import Cluster


class NothingToAuditError(InvalidSettingError):
    """An audit without a target: the table of the group is not known."""


@dataclass(frozen=True)
class GroupAudit:
    """One audit of one group.

    The commit logs and the log ends are read before the table. While the group runs, the table may be ahead
    of them.

    Args:
        cluster: the cluster that has the group.
        session: returns a Spark session on a server that has the table's catalog; not called for a sink.
        topics: the topics to audit. Without any: all that the group has committed to, and recreated topics
            that the table has rows of.
        table: the table; by default the one that the catch-up commit log names.
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
            NoSuchGroupError: the group has no commit.
            NothingToAuditError: no target is known. The message has the fix.
            KafkaLivenessError: the broker, Spark or the table did not respond.
        """
        check_group_id(self.group_id)
        # Read before the ledger: rows are written before their offsets are committed, so the ledger has them
        commits = self._commits()
        target = self._target(commits)
        is_table = self.sink_ledger is None and (self.table is not None or is_table_name(target))
        if deep and not is_table:
            raise NothingToAuditError(
                f"Option --deep needs an Iceberg table, but group {self.group_id} writes to sink {target}. "
                "Nothing was compared. Fix: omit --deep, or name a table with --table"
            )
        ledger = self._table_ledger(target) if is_table else self.sink_ledger
        history = ledger.prove() if ledger is not None else None
        if history is not None:
            commits |= self._recreated_partitions(history, commits)
            states = {tp: replace(one, ledger_entry=history.ledger.entry(tp)) for tp, one in commits.items()}
        else:
            states = commits if ledger is None else with_ledger(commits, ledger)
        if not states:
            raise self._no_commit_error()
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
        """Return the target of the rows: the option's, else the one that the catch-up commit log names.

        Raises:
            NothingToAuditError: the commits name no target, several, or another one than the sink.
        """
        if self.table is not None:
            return self.table
        if self.sink_ledger is None:
            return _audited_target(self.group_id, commits)
        target: str = self.sink_ledger.target
        named = sorted({one.catch_up_log.target for one in commits.values() if one.catch_up_log.target})
        if named not in ([], [target]):
            raise NothingToAuditError(
                f"The rows of group {self.group_id} go to {', '.join(named)}, not to sink {target}. Fix: "
                "name the asset of this group with --sink"
            )
        return target

    def _table_ledger(self, target: str) -> SinkLedger[Any]:
        from kafka_liveness_dagster.spark.table.ledger import TableLedger  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415

        return TableLedger(IcebergTable(target), self.session)

    def _commits(self) -> dict[TopicPartition, PartitionState]:
        """Return the states of all partitions of the given topics, or of the topics in the commit logs."""
        asked = self.cluster.partitions(self.topics or None)
        live, catch_up = (
            self.cluster.commits(name, asked) for name in (self.group_id, self.group_id + CATCH_UP_SUFFIX)
        )
        if not (live or catch_up or self.table or self.sink_ledger):
            raise self._no_commit_error()
        named = set(self.topics) or {tp.topic for tp in (*live, *catch_up)}
        return self.cluster.with_log_bounds(
            {tp: decode_partition_state(live.get(tp), catch_up.get(tp)) for tp in asked if tp.topic in named}
        )

    def _recreated_partitions(
        self, history: LedgerHistory, commits: Mapping[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, PartitionState]:
        """Return the partitions of recreated topics. The broker deleted the commits of the old topics."""
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

    def _no_commit_error(self) -> NoSuchGroupError:
        of = f" for {', '.join(self.topics)}" if self.topics else ""
        return NoSuchGroupError(
            f"No offset of group {self.group_id!r} is committed{of} at "
            f"{self.cluster.settings.bootstrap_servers}. Nothing was audited. If its topic was deleted or "
            "its offsets expired, the table still has the ledger. Fix: check the group id, or name the table "
            "with --table"
        )


def _audited_target(group_id: str, commits: Mapping[TopicPartition, PartitionState]) -> str:
    """Return the target that the catch-up commit log names; raise if it names none or several."""
    named = sorted({one.catch_up_log.target for one in commits.values() if one.catch_up_log.target})
    if len(named) == 1:
        return named[0]
    replaced = {tp: one.catch_up_log.external for tp, one in commits.items() if one.catch_up_log.external}
    if not named and replaced:
        raise NothingToAuditError(
            f"No commit of group {group_id} names its table: external commits replaced the catch-up commit "
            f"log, {group_id}{CATCH_UP_SUFFIX} "
            f"({join_some([f'{tp}, {one}' for tp, one in replaced.items()])}). Fix: name the table with "
            "--table; or start a live run, which rewrites the log of a group with a table"
        )
    if not named:
        raise NothingToAuditError(
            f"No commit of group {group_id} names a target. A group without a table, or with a sink that has "
            "no ledger, records none. Fix: name the table with --table, or run the live lane once"
        )
    raise NothingToAuditError(
        f"The partitions of group {group_id} name several targets: {', '.join(named)}. The asset got another "
        "table, or several assets share the group. Fix: name one table with --table, and its topics with "
        "--topic"
    )


def _compacted_topics(cluster: Cluster, topics: Collection[str]) -> set[str]:
    """Return the topics that compaction removes records from; none if the broker rejects the query."""
    from confluent_kafka import KafkaException  # noqa: PLC0415 - only a deep audit needs it
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
