"""What is a group at one look? Its members, partitions and runs, as Kafka and Dagster say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING
from zlib import crc32

from kafka_liveness_dagster.core.commit_log import Mark
from kafka_liveness_dagster.core.membership import departures
from kafka_liveness_dagster.core.run_marks import run_mark, run_of_place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafka_liveness_dagster.core.commit_log import LiveMark
    from kafka_liveness_dagster.core.events import MemberLeft
    from kafka_liveness_dagster.core.membership import PartitionSnapshot, Run
    from kafka_liveness_dagster.core.offsets import TopicPartition


class GroupState(Enum):
    """What the coordinator says of a group; the classic protocol's and KIP-848's states come to these four."""

    STABLE = "stable"
    REBALANCING = "rebalancing"
    EMPTY = "empty"
    DEAD = "dead"


@dataclass(frozen=True)
class MemberSeen:
    """One member as the coordinator lists it.

    Attributes:
        name: the run's 8 hex digits; of a foreign member words for people.
        is_foreign: it is no run of this package.
        is_static: it has a ``group.instance.id`` of the user's.
        place: its ``group.instance.id`` when that was made for its run: after its death another run may be there.
        is_elsewhere: a Dagster run that this instance does not have.
    """

    member_id: str
    name: str
    partitions: tuple[TopicPartition, ...]
    is_foreign: bool = False
    is_static: bool = False
    place: str | None = None
    is_elsewhere: bool = False

    @property
    def key(self) -> str:
        """Enough of the member id to know it again."""
        return f"{crc32(self.member_id.encode()):08x}"

    @property
    def is_heir(self) -> bool:
        """Whether it goes on under the name of another run."""
        first = run_of_place(self.place)
        return first is not None and run_mark(first) != self.name


@dataclass(frozen=True)
class GroupSnapshot:
    """A group at one look: the coordinator's, the commit logs' and Dagster's word.

    Attributes:
        runs: of the live lane, the newest first.
        catch_up: runs of the other lane, those in progress.
    """

    state: GroupState
    members: tuple[MemberSeen, ...]
    partitions: tuple[PartitionSnapshot, ...]
    runs: Mapping[str, Run] = field(default_factory=dict)
    catch_up: Mapping[str, Run] = field(default_factory=dict)

    @cached_property
    def known(self) -> tuple[MemberSeen, ...]:
        """The members in a lasting order, each under the run that it is.

        Of a member with a ``group.instance.id`` the coordinator shows the client id that joined first: who commits a
        static one's partitions is it, and who took over a place has said so; where nobody has that this Dagster knows
        of, and the one it was made for does not work either, commits tell here too.
        """
        return tuple(self._named(member) for member in sorted(self.members, key=lambda member: member.member_id))

    @property
    def size(self) -> int:
        """How many work: a run that lost its broker, and joined again, is listed twice until its session times out."""
        return len({member.name for member in self.known})

    def _named(self, member: MemberSeen) -> MemberSeen:
        if not (member.is_static or member.place):
            return member
        heirs = [name for name, run in self.runs.items() if member.place and run.has_place(member.place)]
        first = self.runs.get(member.name)
        marks = [self._marks[tp] for tp in member.partitions if tp in self._marks]
        marked = min(((mark.mark is not Mark.RUNNING, mark.run) for mark in marks), default=(True, ""))[1]
        if heirs:
            return replace(member, name=marked if marked in heirs else heirs[0], is_elsewhere=False)
        if marked and (member.is_static or not (first and first.is_at_work)):
            return replace(member, name=marked, is_foreign=False)
        return member

    @cached_property
    def _marks(self) -> dict[TopicPartition, LiveMark]:
        return {seen.topic_partition: seen.mark for seen in self.partitions if seen.mark is not None}

    @property
    def listed(self) -> dict[str, bool]:
        """The runs that the coordinator lists, and whether as static members."""
        return {member.name: member.is_static for member in self.known if not member.is_foreign}

    @property
    def left(self) -> list[MemberLeft]:
        """Who stands in the commit log and does not work any more."""
        return departures(self.partitions, self.listed, self.runs)

    @property
    def dealt(self) -> str:
        """Who has which partitions, in 8 digits."""
        shares = sorted((member.member_id, *map(str, sorted(member.partitions))) for member in self.members)
        return f"{crc32(repr(shares).encode()):08x}"
