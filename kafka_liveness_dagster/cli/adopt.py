"""Let a consumer group take over the rows of a table that another group wrote: ``kafka-liveness adopt``.

Must not change a row: the table gets one snapshot without rows whose ledger names the new group.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.ledger import encode_entries
from kafka_liveness_dagster.core.names import check_group_id, format_count
from kafka_liveness_dagster.kafka.successor import copy_commits, require_idle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.core.ledger import Ledger
    from kafka_liveness_dagster.kafka.admin import Cluster


@dataclass(frozen=True)
class Adoption:
    """The rows that a group takes over.

    Attributes:
        snapshot_id: the table's current snapshot, which the ledger describes.
        groups: all groups that wrote rows of each topic, another one than ``group_id`` among them.
        offsets: the number of offsets of each topic in the table.
    """

    cluster: Cluster
    session: SparkSession
    group_id: str
    _: KW_ONLY
    table: str
    snapshot_id: int
    ledger: Ledger
    groups: Mapping[str, frozenset[str]]
    offsets: Mapping[str, int]

    @classmethod
    def read(
        cls, cluster: Cluster, session: SparkSession, group_id: str, table: str, topics: Sequence[str]
    ) -> Adoption:
        """Read the table's ledger.

        Raises:
            InvalidSettingError: no other group wrote rows of these topics, or one of the groups has members.
        """
        from kafka_liveness_dagster.spark.table.ledger import TableLedger  # noqa: PLC0415  `--help` must not wait for it
        from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415

        check_group_id(group_id)
        seen = TableLedger(IcebergTable(table), lambda: session).prove()
        groups: dict[str, frozenset[str]] = {}
        offsets: dict[str, int] = {}
        for tp, entry in seen.ledger.entries.items():
            wrote = seen.ledger.entry(tp).groups
            if wrote - {group_id} and (not topics or tp.topic in topics):
                groups[tp.topic] = wrote
                offsets[tp.topic] = offsets.get(tp.topic, 0) + sum(span.size for span in entry.written)
        if not groups or seen.snapshot_id is None:
            raise InvalidSettingError(
                f"Table {table} has no rows{' of these topics' if topics else ''} that another group than "
                f"{group_id} wrote. Nothing was changed. Fix: check the names of the table and the group; "
                f"`kafka-liveness audit {group_id} --table {table}` shows the table's offsets."
            )
        require_idle(cluster, sorted({group_id}.union(*groups.values())))
        return cls(
            cluster,
            session,
            group_id,
            table=table,
            snapshot_id=seen.snapshot_id,
            ledger=seen.ledger,
            groups=groups,
            offsets=offsets,
        )

    def lines(self) -> Iterator[str]:
        """Describe the rows of each topic."""
        for topic, groups in self.groups.items():
            others = sorted(groups - {self.group_id})
            yield f"{topic}: {format_count(self.offsets[topic], 'offset')} written by {', '.join(others)}"

    def as_json(self) -> dict[str, Any]:
        """Return the group, the table, and the rows of each topic."""
        topics = {
            topic: {"former_groups": sorted(groups - {self.group_id}), "offsets": self.offsets[topic]}
            for topic, groups in self.groups.items()
        }
        return {"group": self.group_id, "table": self.table, "topics": topics}

    def adopt(self) -> Iterator[str]:
        """Copy the commits of a single former group, then name the new group in the table's ledger.

        The table comes last: until then every run of the new group is refused, and the command can be
        repeated.
        """
        from kafka_liveness_dagster.core.ledger import TOTAL_AS_OF_KEY, TOTAL_KEY  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.commits import append_empty  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415

        mixed = [topic for topic, groups in self.groups.items() if len(groups) > 1]
        for topic in sorted(self.groups.keys() - mixed):
            (former,) = self.groups[topic]
            if copied := copy_commits(self.cluster, former, self.group_id, topics=[topic]):
                yield f"{topic}: copied the commits of {format_count(len(copied), 'partition')} from {former}"
        entries = {
            tp: replace(entry, groups=frozenset({self.group_id})) if tp.topic in self.groups else entry
            for tp, entry in self.ledger.entries.items()
        }
        summary = {
            TOTAL_KEY: encode_entries(entries, complete=self.ledger.is_complete),
            TOTAL_AS_OF_KEY: str(self.snapshot_id),
        }
        table = IcebergTable(self.table)
        table.check_main(self.session)
        append_empty(self.session.table(table.quoted), table, summary)
        yield (
            f"{self.table}: the rows of {format_count(len(self.groups), 'topic')} belong to group "
            f"{self.group_id} now"
        )
        if mixed:
            yield (
                f"{', '.join(mixed)}: several groups wrote here, and the last one to write an offset has "
                f"its rows. Fix: replay them with `kafka-liveness replay {self.group_id} --from …`"
            )
