"""The live lane's consumer: join the group, plan fair batches, commit them, and see both logs (KIP-333).

Each method of ``GroupView`` cites the sentence of the KIP's "Effects on Current API And Behavior" that it implements,
and neither joins a group nor processes an offset.

Joins at the first poll, after everything that can be checked was checked. No record is kept, so nothing that
is planned and not committed is ever lost: it is planned again by whoever owns the partition next.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.batch_planning import Batch, Rotation, Wanted
from kafka_liveness_dagster.core.batch_size import PoisonedOffsetError
from kafka_liveness_dagster.core.commit_metadata import committed
from kafka_liveness_dagster.core.departures import PartitionSnapshot, is_due_a_partition
from kafka_liveness_dagster.core.errors import KafkaLivenessError, first_line
from kafka_liveness_dagster.core.fencing import FenceReason, PollTimer
from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
from kafka_liveness_dagster.core.partition_state import RowsMissingError, rows_missing
from kafka_liveness_dagster.core.resume import resume
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.catch_up import consumer
from kafka_liveness_dagster.kafka.catch_up.commit_log import SecondLog
from kafka_liveness_dagster.kafka.delegated import delegated
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, CommitRefusedError
from kafka_liveness_dagster.kafka.live.data_listener import LOOK_SECONDS
from kafka_liveness_dagster.kafka.live.member import Member
from kafka_liveness_dagster.kafka.live.planner import Found, LiveLane
from kafka_liveness_dagster.kafka.live.session import Commits, Memberships, place
from kafka_liveness_dagster.kafka.partition_states import witnessed
from kafka_liveness_dagster.kafka.record_reader import RecordReader, Records
from kafka_liveness_dagster.kafka.run_context import RunLink, now_ms
from kafka_liveness_dagster.kafka.timestamps import seconds_behind
from kafka_liveness_dagster.kafka.watchdog import Fence

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from kafka_liveness_dagster.core.partition_state import PartitionFacts
    from kafka_liveness_dagster.core.timeouts import Timeouts
    from kafka_liveness_dagster.kafka.live.planner import Recovery
    from kafka_liveness_dagster.kafka.settings import KafkaSettings, LiveSettings


class GroupView:
    """One consumer's view of its group.

    Args:
        cluster: where the group is.
        settings: which group, and on which topics.
        memberships: what of it is this consumer's.
        link: its run, who knows of the others.
    """

    def __init__(self, cluster: Cluster, settings: LiveSettings, memberships: Memberships, link: RunLink) -> None:
        self._cluster, self._settings, self._memberships, self._link = cluster, settings, memberships, link

    @property
    def joined(self) -> bool:
        """Whether the group has let this consumer in, and has not put it out again since."""
        lane = self._memberships.lane
        return lane is not None and lane.member.joined and lane.member.ended is None

    def partitions_to_come(self) -> str:
        """Why this member will have something to do: what the group has. Empty when it is as it will be.

        A rebalance that waits for others' batches may let a new member in first, with nothing to do (cooperative), or
        has given it partitions and refuses its commits until all have heard of it.

        Raises:
            BrokerUnreachableError: nobody can tell.
        """
        lane = self._memberships.lane
        if lane is None:
            return ""
        if self.is_held_up():
            return f"{len(lane.member.arrived)} partitions have come, and a rebalance holds their first commit up"
        if lane.member.owned:
            return ""
        members = self._cluster.members(self._settings.group_id)
        others = [len(member.partitions) for member in members if member.client_id != self._link.client_id]
        partitions = len(self._cluster.partitions(self._settings.topics))
        if not is_due_a_partition(partitions, others):
            return ""
        return f"{partitions} partitions, {sum(map(bool, others))} other members at work"

    def is_held_up(self) -> bool:
        """Whether partitions have come whose first commit a rebalance still refuses."""
        lane = self._memberships.lane
        return lane is not None and bool(lane.member.arrived)

    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions owned now; the live lane's alone, as "subscribe(), assign(), and unsubscribe()" are."""
        return tuple(sorted(self._memberships.owned))

    def position(self, topic: str, partition: int) -> int | None:
        """Where the live lane's next batch begins; None for a partition not owned.

        KIP-333: "position() - will call the user-created consumer's position, the second consumer [...] will not
        take any part in this call".
        """
        owned = self._memberships.owned.get(TopicPartition(topic, partition))
        return owned.position if owned else None

    def committed(self, topic: str, partition: int) -> int | None:
        """Every offset before it is processed, in whichever lane; None while nothing is committed.

        KIP-333: "any offset before the one returned by KafkaConsumer#committed has also been checkpointed as well".
        With a ``witness`` the table is queried too; without one, or without its response, both commit logs decide.

        Raises:
            OtherTableError: the group's commits are about another table.
            RowsMissingError: the table has lost rows that this process wrote.
        """
        seen = self._processed(topic, partition)
        return committed(seen.committed, seen.pending)

    def owed(self, topic: str, partition: int) -> tuple[OffsetRange, ...]:
        """The pending offset ranges: crash lag that no catch-up run has done, and rows that the table has lost.

        KIP-333: "we need to remember these two numbers [...] they need to be checkpointed as a token". The sources are
        those of ``committed``.
        """
        return tuple(OffsetRange(topic, partition, *span) for span in self._processed(topic, partition).pending)

    def beginning_offsets(self, topic: str, partition: int) -> int:
        """The first offset there is to read for either lane: the log start.

        KIP-333: "beginningOffsets(), endOffsets() - Will check both consumer threads". They read one log, so the
        earlier of the two beginnings is the log's; what each lane has done is ``committed`` and ``owed``.
        """
        return self._facts(topic, partition).log_start

    def end_offsets(self, topic: str, partition: int) -> int:
        """The offset behind the last there is to read for either lane: the last stable offset (``read_committed``)."""
        return self._facts(topic, partition).log_end

    def lag(self) -> int:
        """Offsets that the owned partitions have behind their positions, up to the log end; in two requests."""
        owned = dict(self._memberships.owned)
        bounds = self._cluster.log_bounds(owned)
        return sum(max(0, bounds[tp][1] - one.position) for tp, one in owned.items())

    def seconds_behind(self) -> float | None:
        """How much newer the log's newest record is than the newest processed one, by their own timestamps.

        Of the owned partition that is worst off; 0 where nothing waits, None where nobody can tell.

        Raises:
            BrokerUnreachableError: no broker answers.
        """
        positions = {tp: one.position for tp, one in dict(self._memberships.owned).items()}
        ends = {tp: end for tp, (_, end) in self._cluster.log_bounds(positions).items()}
        return seconds_behind(self._cluster, self._settings.group_id, positions, ends)

    def pause(self, topic: str, partition: int) -> None:
        """Hold both lanes of an owned partition until ``resume``; the first commit log keeps it over restarts.

        KIP-333: "when we call pause() or resume(), both consumer threads will stop or restart processing on
        partitions accordingly". A batch under way is not stopped; its commit passes.

        Raises:
            CommitRefusedError: the partition is not owned, or the mark could not be committed.
        """
        self._hold(TopicPartition(topic, partition), paused=True)

    def resume(self, topic: str, partition: int) -> None:
        """Let both lanes of a paused partition go on, in order from where they were.

        Raises:
            CommitRefusedError: the partition is not owned, or the mark could not be committed.
        """
        self._hold(TopicPartition(topic, partition), paused=False)

    def child_consumer_is_alive(self) -> bool:
        """Return whether a catch-up lane of the group is at work: open in this process, or in a Dagster run.

        KIP-333: "a boolean value indicating if the secondary thread created has started or not". So a run that is
        queued or starting does not count. Scripts in other processes are not known.
        """
        group_id = self._settings.group_id
        return consumer.is_open(self._cluster.settings, group_id) or self._link.catch_up_runs(group_id) > 0

    def _processed(self, topic: str, partition: int) -> PartitionSnapshot:
        tp, settings = TopicPartition(topic, partition), self._settings
        return PartitionSnapshot.of(tp, witnessed(self._cluster, settings.group_id, [tp], settings.witness)[tp])

    def _facts(self, topic: str, partition: int) -> PartitionFacts:
        tp = TopicPartition(topic, partition)
        return self._cluster.facts(self._settings.group_id, [tp])[tp]

    def _hold(self, tp: TopicPartition, *, paused: bool) -> None:
        lane = self._memberships.lane
        if lane is None or tp not in lane.member.owned:
            raise CommitRefusedError(
                f"{tp} is not owned by this consumer, so it cannot be paused or resumed here: poll() until it is in "
                "assignment(), or call this where it is owned"
            )
        lane.hold(tp, paused=paused)
        if tp not in lane.member.owned:
            raise CommitRefusedError(
                f"{tp} was handed over while it was to be {'paused' if paused else 'resumed'}: nothing was changed, "
                "call this where it is owned now"
            )


class LivenessConsumer:
    """A heartbeat-enabled consumer whose poll interval is its run's budget. Use it as a context manager.

    Leaving the block normally releases the partitions: the next owner resumes in order. Leaving it by an error
    leaves the group too, but the partitions keep the mark of a crash: with ``enable_parallel_rebalance`` the
    open batch becomes crash lag and the live lane goes on at the log end.

    Attributes:
        jumped: crash lag this consumer found, in the order of finding.
        lost: what expired before either lane processed it, with ``on_data_loss="write_off"``.
        forgotten: what this consumer owes again: the commit that said so was replaced, or the table has lost it.
        recovered: ranges that a dead run had written and not committed, and that this consumer does not write again.
    """

    def __init__(self, kafka: KafkaSettings, live: LiveSettings, timeouts: Timeouts, link: RunLink) -> None:
        self.timeouts, self.settings = timeouts, live
        self._kafka, self._link, self._cluster = kafka, link, Cluster(kafka)
        self._found, self._poison, self._rotation = Found(), set[OffsetRange](), Rotation()
        self.jumped, self.lost, self.forgotten = self._found.jumped, self._found.lost, self._found.forgotten
        self.recovered = self._found.recovered
        self._second: SecondLog | None = None
        self._timer = PollTimer(timeouts.process_ms, now_ms(), link.ends_at_ms)
        self._memberships = Memberships(
            self._timer,
            link,
            self._join,
            serves_while_busy=live.serves_while_busy,
            outcome=live.policy.after_fence,
        )
        self._fence = self._memberships.fence
        self._commits = Commits(
            self._cluster,
            live.group_id,
            self._memberships,
            self._rotation,
            found=self._found,
            second=self._second_log,
            link=link,
        )
        self._view = GroupView(self._cluster, live, self._memberships, link)
        self._reader = RecordReader(kafka, live.group_id, link.client_id)
        self._records = Records(self._reader, self._fence)

    # Whether it may go on, and what is to stop when it may not
    check = delegated("_fence", Fence.check)
    check_open = delegated("_fence", Fence.check_open)
    is_open = delegated("_fence", Fence.is_open)
    on_fence = delegated("_fence", Fence.on_fence)
    before_revoke = delegated("_memberships", Memberships.before_revoke)

    # A batch: its records, and its commit
    records = delegated("_records", Records.records)
    confirm = delegated("_commits", Commits.confirm)
    check_room = delegated("_commits", Commits.check_room)
    commit = delegated("_commits", Commits.commit)

    # KIP-333's view of both lanes and both logs
    partitions_to_come = delegated("_view", GroupView.partitions_to_come)
    is_held_up = delegated("_view", GroupView.is_held_up)
    assignment = delegated("_view", GroupView.assignment)
    position = delegated("_view", GroupView.position)
    committed = delegated("_view", GroupView.committed)
    owed = delegated("_view", GroupView.owed)
    beginning_offsets = delegated("_view", GroupView.beginning_offsets)
    end_offsets = delegated("_view", GroupView.end_offsets)
    lag = delegated("_view", GroupView.lag)
    seconds_behind = delegated("_view", GroupView.seconds_behind)
    pause = delegated("_view", GroupView.pause)
    resume = delegated("_view", GroupView.resume)
    child_consumer_is_alive = delegated("_view", GroupView.child_consumer_is_alive)

    @property
    def joined(self) -> bool:
        """Whether the group has let this consumer in, and has not put it out again since.

        A rebalance may wait for others' batches or dead sessions.
        """
        return self._view.joined

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, RowsMissingError):
            self._second_log().record_missing(error.ranges, self._link.log)
        # KeyboardInterrupt and Dagster's interrupt are someone's wish to stop, no failures
        release = kind is None or not issubclass(kind, Exception)
        if error is not None and not release:
            self._say_what_follows(error)
        is_interrupt = kind is not None and release and kind is not GeneratorExit
        self._close(release=release, why=FenceReason.INTERRUPTED if is_interrupt else FenceReason.CLOSED)

    def poll(
        self,
        timeout_seconds: float = 5.0,
        max_records: int | None = None,
        *,
        min_records: int = 1,
        max_wait_seconds: float | None = None,
    ) -> Batch | None:
        """The next batch, or None when nothing new came in time. The first poll joins the group.

        The batch before need not be committed yet. After a poll timeout the next poll joins again, and what was not
        committed is planned again (KIP-62); with ``enable_parallel_rebalance`` it becomes crash lag.

        Args:
            timeout_seconds: how long to wait for data.
            max_records: a smaller bound than ``max_poll_records`` for this batch (KIP-41's rejected argument).
            min_records: fewer offsets are left where they are, like ``fetch.min.bytes`` leaves bytes at the broker.
            max_wait_seconds: fewer do if they have waited for so long, like with ``fetch.max.wait.ms``. They are waited
                for beyond the timeout, but not so long that the run's own time would be over.

        Raises:
            FencedError: this process is finished with the group.
            KafkaLivenessError: the broker, a topic or a commit is not as it must be; the text says how.
        """
        give_up_at, bound = time.monotonic() + timeout_seconds, self.settings.max_poll_records
        wanted = Wanted(bound if max_records is None else min(max_records, bound), min_records, max_wait_seconds)
        while True:
            batch = self._look(wanted)
            asked_at = time.monotonic()
            if max_wait_seconds is not None and self._has_waiting():
                give_up_at = max(give_up_at, asked_at + LOOK_SECONDS)
            if batch is not None or asked_at >= give_up_at:
                return batch
            with suppress(BrokerUnreachableError):  # the next look waits for it
                self._wait(give_up_at)

    def on_recovered(self, repeat: Recovery) -> None:
        """Register what repeats the side effects that the dead writer of recovered ranges may have skipped.

        Caller: ``poll``, in its caller's thread. Affects: the ranges are committed after it returned.
        """
        self._found.on_recovered = repeat

    def heartbeat(self) -> None:
        """Say that the work on the open batch goes on: the process timeout begins anew, a rebalance is answered.

        For ops whose batch may take longer than its budget as long as it moves (KIP-62's possible extension).

        Raises:
            FencedError: the process timeout had passed, or this process is finished with the group: stop the work.
        """
        self._fence.heartbeat()
        self._memberships.answer()
        self._fence.check()

    def check_rows(self) -> None:
        """Check that the witness has all rows that are committed of the partitions that this consumer ever had.

        Reads both commit logs and the witness once, and needs no membership. Offsets that another client committed are
        left to the next run.

        Raises:
            RowsMissingError: it lacks some of them.
        """
        partitions = sorted(self._found.debts) if self.settings.witness else []
        if not partitions:
            return
        for tp, facts in witnessed(self._cluster, self.settings.group_id, partitions, self.settings.witness).items():
            missing = facts.missing(facts.committed or 0) if facts.proves_loss else ()
            if missing:
                raise rows_missing(tp, facts, missing, "This run writes and commits nothing more")

    def has_time_for_a_batch(self) -> bool:
        """Whether the run's own budget still covers a batch's: time to stop and release when it does not."""
        return self._timer.left_ms(now_ms()) >= min(self.timeouts.process_ms, 10_000)

    def quarantine(self, poison: OffsetRange) -> None:
        """Let the live lane pass an offset that stopped it: with the next poll it is owed, like crash lag.

        Raises:
            PoisonedOffsetError: it was to be passed before, but the commit metadata has no room for it.
        """
        if poison in self._poison:
            outcome = "The group owes too many ranges to owe it too: materialize crash lag partitions first"
            raise PoisonedOffsetError([poison], self.timeouts.process_ms / 1000, outcome)
        self._poison.add(poison)

    def plan_again(self) -> None:
        """Plan what is not committed again with the next poll, which reads the log's ends and the topic's id anew.

        For a batch whose records could not be read: if the broker has deleted them, the poll says so or passes them.
        """
        if (lane := self._memberships.lane) is not None:
            lane.plan_again()

    def leave(self) -> None:
        """Leave the group and release the partitions; both commit logs and the witness can still be read."""
        self._memberships.close(release=True)

    def close(self, *, release: bool = True) -> None:
        """Leave the group at once. ``release=False`` leaves the partitions as a crash would."""
        self._close(release=release, why=FenceReason.CLOSED)

    def _close(self, *, release: bool, why: FenceReason) -> None:
        try:
            self._memberships.close(release=release, why=why)
        finally:
            self._reader.close()
            if self._second is not None:
                self._second.close()

    def _say_what_follows(self, error: BaseException) -> None:
        """Add to an error where the next live run goes on: this one leaves its partitions as a crash would."""
        fenced = self._memberships.watchdog.reason
        if not self._found.debts or (fenced is not None and fenced.releases):
            return  # it never owned a partition, or gives them up in good order
        policy = self.settings.policy
        if isinstance(error, KafkaLivenessError):
            if policy.enable_parallel_rebalance or isinstance(error, BrokerUnreachableError):
                error.add(policy.after_error)
        elif policy.enable_parallel_rebalance:
            self._link.log.warning("This live run ended by an error (%s). %s", first_line(error), policy.after_error)

    def _has_waiting(self) -> bool:
        lane = self._memberships.lane
        return lane is not None and lane.waits_since is not None and self.has_time_for_a_batch()

    def _wait(self, give_up_at: float) -> None:
        """Until the next look is due: soon, or when there is news."""
        looked_at, lane = time.monotonic(), self._memberships.serve()
        while not lane.member.listening.has_news:
            if time.monotonic() >= min(looked_at + lane.member.listening.look_seconds, give_up_at):
                return
            lane = self._memberships.serve()

    def _look(self, wanted: Wanted) -> Batch | None:
        """One look at the log ends; brokers that are away are waited for as long as a batch may take."""
        give_up_at = time.monotonic() + self.timeouts.process_ms / 1000
        while True:
            try:
                lane = self._memberships.serve(0.0)  # who is a member already has nothing to wait for
                lane.forget_done()
                self._fence.still_polling()  # what settling and recovering took is not the next batch's
                return self._plan(lane, wanted) if self._memberships.watchdog.reason is None else None
            except BrokerUnreachableError as error:
                if self._memberships.lane is None or time.monotonic() >= give_up_at:
                    raise  # who has not joined yet hears it at once
                self._link.log.warning("still a member, looking again: %s", error)

    def _plan(self, lane: LiveLane, wanted: Wanted) -> Batch | None:
        began_ms = now_ms()
        batch = lane.plan(wanted)
        if batch is None:
            return None
        at_ms = now_ms()
        deadline_seconds, planning_seconds = self._timer.left_ms(at_ms) / 1000, (at_ms - began_ms) / 1000
        epoch = self._fence.epoch
        return replace(batch, deadline_seconds=deadline_seconds, epoch=epoch, planning_seconds=planning_seconds)

    def _join(self) -> LiveLane:
        """A new membership; what no resume can work with is said before the group is disturbed."""
        self._second_log()  # finds its coordinator while others are asked
        partitions = self._cluster.partitions(self.settings.topics)
        facts = witnessed(self._cluster, self.settings.group_id, partitions, self.settings.witness)
        for tp, found in facts.items():
            resume(tp, found, self.settings.policy)
        own = place(self._cluster, self.settings, self.timeouts, self._link, partitions)
        live = replace(self.settings, place=own)
        member = Member(self._kafka, live, self.timeouts, self._link)
        self._rotation.deal_again()
        return LiveLane(
            self._cluster,
            member,
            self.settings,
            found=self._found,
            poison=self._poison,
            rotation=self._rotation,
            second=self._second_log,
            log=self._link.log,
        )

    def _second_log(self) -> SecondLog:
        self._second = self._second or SecondLog(self._kafka, self.settings.group_id, self._link.client_id)
        return self._second
