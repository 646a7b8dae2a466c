"""Let a consumer group take over the rows of a table that another group wrote: ``kafka-liveness adopt``.

Must not change a row: the table gets one snapshot without rows whose ledger names the new group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.ledger_text import encode
from kafka_liveness_dagster.core.names import check_group_id
from kafka_liveness_dagster.kafka.successor import check_idle, copy_commits
from kafka_liveness_dagster.metadata import number

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
        former: the other groups that wrote rows of each topic.
        offsets: the number of offsets of each topic in the table.
    """

    cluster: Cluster
    session: SparkSession
    group_id: str
    table: str
    snapshot_id: int
    ledger: Ledger
    former: Mapping[str, Sequence[str]]
    offsets: Mapping[str, int]

    @classmethod
    def of(cls, cluster: Cluster, session: SparkSession, group_id: str, table: str, topics: Sequence[str]) -> Adoption:
        """Read the table's ledger.

        Raises:
            InvalidSettingError: no other group wrote rows of these topics, or one of the groups has members.
        """
        from kafka_liveness_dagster.spark.history import history  # noqa: PLC0415  `--help` must not wait for it
        from kafka_liveness_dagster.spark.table import IcebergTable  # noqa: PLC0415

        check_group_id(group_id)
        seen = history(session, IcebergTable(table))
        former: dict[str, list[str]] = {}
        offsets: dict[str, int] = {}
        for tp, account in seen.ledger.accounts.items():
            others = sorted(seen.ledger.of(tp).groups - {group_id})
            if others and (not topics or tp.topic in topics):
                former[tp.topic] = others
                offsets[tp.topic] = offsets.get(tp.topic, 0) + sum(span.size for span in account.done)
        if not former or seen.snapshot_id is None:
            raise InvalidSettingError(
                f"Table {table} has no rows{' of these topics' if topics else ''} that another group than {group_id} "
                "wrote. Nothing was changed. Fix: check the names of the table and the group; "
                f"`kafka-liveness audit {group_id} --table {table}` shows the table's offsets."
            )
        check_idle(cluster, [group_id, *sorted({group for groups in former.values() for group in groups})])
        return cls(cluster, session, group_id, table, seen.snapshot_id, seen.ledger, former, offsets)

    def lines(self) -> Iterator[str]:
        """Describe the rows of each topic."""
        for topic, groups in self.former.items():
            yield f"{topic}: {number(self.offsets[topic], 'offset')} written by {', '.join(groups)}"

    def adopt(self) -> Iterator[str]:
        """Copy the commits of a single former group, then name the new group in the table's ledger.

        The table comes last: until then every run of the new group is refused, and the command can be repeated.
        """
        from kafka_liveness_dagster.spark.snapshots import append_nothing  # noqa: PLC0415
        from kafka_liveness_dagster.spark.summaries import HAD, SINCE  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table import IcebergTable  # noqa: PLC0415

        for topic, groups in self.former.items():
            if len(groups) > 1 or self._wrote(topic):
                continue
            if copied := copy_commits(self.cluster, groups[0], self.group_id, [topic]):
                yield f"{topic}: copied the commits of {number(len(copied), 'partition')} from {groups[0]}"
        accounts = {
            tp: replace(account, groups=frozenset({self.group_id})) if tp.topic in self.former else account
            for tp, account in self.ledger.accounts.items()
        }
        summary = {HAD: encode(accounts, complete=self.ledger.complete), SINCE: str(self.snapshot_id)}
        table = IcebergTable(self.table)
        append_nothing(self.session.table(table.quoted), table, summary)
        yield f"{self.table}: the rows of {number(len(self.former), 'topic')} belong to group {self.group_id} now"
        if mixed := [topic for topic, groups in self.former.items() if len(groups) > 1 or self._wrote(topic)]:
            yield (
                f"{', '.join(mixed)}: several groups wrote here, and the last one to write an offset has its rows. "
                f"Fix: replay them with `kafka-liveness replay {self.group_id} --from …`"
            )

    def _wrote(self, topic: str) -> bool:
        """Return whether the new group wrote rows of the topic before."""
        return any(self.group_id in self.ledger.of(tp).groups for tp in self.ledger.accounts if tp.topic == topic)
