"""Each thing that happens to a group is told once, by its right name: every row is one more look."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.departures import GroupSnapshot, GroupState, MemberSnapshot, Run, RunFate
from kafka_liveness_dagster.core.event_detection import MAX_REMEMBERED, MAX_REPORTED, detect_events
from kafka_liveness_dagster.core.events import (
    CrashLagForgotten,
    CrashLagFound,
    GhostFound,
    GroupDied,
    GroupEmptied,
    LeaveReason,
    MemberJoined,
    MemberLeft,
    RebalanceCompleted,
    RebalanceStarted,
    crashed_runs,
    event_identity,
)
from kafka_liveness_dagster.core.fencing import FenceReason, FenceReport
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
from kafka_liveness_dagster.core.process_status import ProcessStatus
from kafka_liveness_dagster.core.run_ids import instance_id_for_run

RUN, OTHER = "0badcafe", "0000beef"
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
AT_WORK = Run(RunFate.IN_PROGRESS, started=True)
GHOST_SECONDS = 60.0


def commit(tp, run=RUN, mark=OwnerState.RUNNING):
    """A partition whose last commit is a run's."""
    return PartitionSnapshot(tp, 70, LiveCommitMetadata(mark, run), log_end=120)


def member(name=RUN, member_id="m-1", partitions=(P0, P1), **kind):
    """One of the group."""
    return MemberSnapshot(member_id, name, tuple(partitions), **kind)


def group(*members, state=GroupState.STABLE, commits=(), runs=None):
    """One look."""
    return GroupSnapshot(state, members, tuple(commits), runs={RUN: AT_WORK} if runs is None else runs)


PLACE = instance_id_for_run("0badcafe-1111", "00c0ffee")
AT_FIRST = group(member(), commits=[commit(P0), commit(P1)])
EMPTY = group(state=GroupState.EMPTY, runs={})
RELEASED = [commit(P0, mark=OwnerState.RELEASED), commit(P1, mark=OwnerState.RELEASED)]


def told(*looks, every=5.0):
    """What each look tells, one look every few seconds."""
    memory, out = None, []
    for number, seen in enumerate(looks):
        events, memory = detect_events(memory, seen, number * every, GHOST_SECONDS)
        out.append(events)
    return out


def test_a_look_that_shows_nothing_new_tells_nothing():
    """Level in, edges out: the same group three times is told at most once."""
    assert told(AT_FIRST, AT_FIRST, AT_FIRST) == [[], [], []]


def test_the_first_look_tells_only_what_someone_must_act_on():
    """Who left in good order before anybody looked is history; a crash is not."""
    assert told(group(state=GroupState.EMPTY, commits=RELEASED, runs={})) == [[]]
    (crash,) = told(group(state=GroupState.EMPTY, commits=[commit(P0)], runs={RUN: Run(RunFate.FAILED)}))
    assert crash == [MemberLeft(RUN, LeaveReason.CRASHED, (P0,))]


def test_a_repeated_look_tells_the_same_again():
    """A tick whose cursor was not saved is a tick that did not happen."""
    _, memory = detect_events(None, AT_FIRST, 0.0, GHOST_SECONDS)
    left = group(state=GroupState.EMPTY, commits=RELEASED)
    assert detect_events(memory, left, 5.0, GHOST_SECONDS) == detect_events(memory, left, 5.0, GHOST_SECONDS)


@pytest.mark.parametrize(
    ("commits", "run", "reason"),
    [
        pytest.param(RELEASED, AT_WORK, LeaveReason.GRACEFUL, id="done"),
        pytest.param(RELEASED, Run(RunFate.CANCELED), LeaveReason.CANCELED, id="canceled"),
        pytest.param(
            AT_FIRST.partitions,
            replace(AT_WORK, fence_report=FenceReport(FenceReason.POLL_TIMEOUT)),
            LeaveReason.POLL_TIMEOUT,
            id="poll timeout",
        ),
        pytest.param(AT_FIRST.partitions, AT_WORK, LeaveReason.UNRESPONSIVE, id="SIGSTOP"),
        pytest.param(AT_FIRST.partitions, Run(RunFate.FAILED), LeaveReason.CRASHED, id="SIGKILL"),
    ],
)
def test_each_kind_of_leaving_is_told_once(commits, run, reason):
    """By its name, with its partitions, and not again while its marks stand."""
    gone = group(state=GroupState.EMPTY, commits=commits, runs={RUN: run})
    assert told(AT_FIRST, gone, gone) == [[], [MemberLeft(RUN, reason, (P0, P1)), GroupEmptied()], []]


def test_a_static_member_that_ended_is_told_while_the_broker_still_lists_it():
    """It sends no LeaveGroup; that its session runs out later is nothing new."""
    static = replace(AT_FIRST, members=(member(is_static=True),))
    ended = replace(static, partitions=tuple(RELEASED), runs={RUN: Run(RunFate.SUCCEEDED)})
    gone = replace(ended, state=GroupState.EMPTY, members=())
    first, silent, _, out = told(static, ended, ended, gone)
    assert (first, silent) == ([], [MemberLeft(RUN, LeaveReason.STATIC, (P0, P1))])
    assert out == [GroupEmptied()]


def test_a_static_member_is_who_commits_not_who_joined_first():
    """On the classic protocol the coordinator goes on showing the first run's client id."""
    successor = group(
        member(OTHER, is_static=True), commits=[commit(P1, mark=OwnerState.RELEASED), commit(P0)]
    )
    assert [seen.name for seen in successor.named_members] == [RUN]
    assert told(*[successor] * 20) == [[]] * 20, "it is no ghost either"
    ended = replace(successor, partitions=tuple(RELEASED), runs={RUN: Run(RunFate.SUCCEEDED)})
    assert ended.owners_without_member == [MemberLeft(RUN, LeaveReason.STATIC, (P0, P1))]
    assert [seen.name for seen in replace(successor, partitions=()).named_members] == [OTHER], (
        "nobody committed"
    )


def test_a_place_is_whose_run_took_it_over():
    """The coordinator goes on showing the client id of the run that died there.

    Dagster knows who said it is there.
    """
    died, heir = Run(RunFate.FAILED), replace(AT_WORK, group_instance_id=PLACE)
    before = group(member(group_instance_id=heir.group_instance_id), commits=[commit(P0)])
    says_so = replace(before, runs={OTHER: heir, RUN: died})
    assert told(
        before, says_so, replace(says_so, members=(member(group_instance_id=PLACE, member_id="m-2"),))
    )[2] == [
        MemberJoined(OTHER, (P0, P1)),
        RebalanceCompleted(1, None),
    ], "it was not there when it said so, and has not left"
    joins = replace(
        before,
        members=(member(group_instance_id=heir.group_instance_id, member_id="m-2"),),
        runs={OTHER: heir, RUN: died},
    )
    works = replace(joins, partitions=(commit(P0, OTHER),))
    assert [[seen.name for seen in one.named_members] for one in (before, joins, works)] == [
        [RUN],
        [OTHER],
        [OTHER],
    ]
    first, second, third = told(before, joins, works)
    assert first == third == []
    assert second[:2] == [MemberLeft(RUN, LeaveReason.CRASHED, (P0,)), MemberJoined(OTHER, (P0, P1))]
    dead = replace(works, runs={OTHER: replace(heir, process=ProcessStatus.GONE), RUN: died})
    assert [(gone.run, gone.reason) for gone in dead.owners_without_member] == [(OTHER, LeaveReason.CRASHED)]
    elsewhere = replace(
        works, members=(replace(works.members[0], is_of_other_instance=True),), runs={OTHER: heir}
    )
    assert not elsewhere.named_members[0].is_of_other_instance, (
        "the run that died there has been deleted from Dagster"
    )


def test_a_place_without_a_known_heir_is_whose_commits_say_so():
    """The heir is of another Dagster instance, or of a job of the user's: it has not died for that."""
    heir, died = "00c0ffee", Run(RunFate.FAILED)
    seen = group(
        member(group_instance_id=PLACE, is_of_other_instance=True), commits=[commit(P0, heir)], runs={}
    )
    assert [one.name for one in seen.named_members] == [heir]
    assert seen.owners_without_member == []
    assert [one.name for one in replace(seen, runs={RUN: died}).named_members] == [heir]
    assert [one.name for one in replace(seen, runs={RUN: AT_WORK}).named_members] == [RUN], (
        "it has only just joined"
    )
    waits = Run(RunFate.IN_PROGRESS, group_instance_id=PLACE)
    assert [one.name for one in replace(seen, runs={OTHER: waits}).named_members] == [heir], (
        "it repeats the heir"
    )
    works = replace(waits, started=True)
    both = replace(seen, runs={OTHER: works, heir: works})
    assert [one.name for one in both.named_members] == [heir], (
        "a run that repeats it has its tags until it joins"
    )


def test_a_member_that_was_gone_between_two_looks_is_told():
    """The same run under another member id has left and joined."""
    back = replace(AT_FIRST, members=(member(member_id="m-2"),))
    assert told(AT_FIRST, back)[1] == [
        MemberLeft(RUN, LeaveReason.UNEXPLAINED, (), is_back=True),
        MemberJoined(RUN, (P0, P1)),
        RebalanceCompleted(1, None),
    ]


def test_a_run_of_another_dagster_instance_is_told_as_that():
    """Its own instance knows why it left: here nobody is to be called for it."""
    there = member(OTHER, "m-2", [P1], is_of_other_instance=True)
    both = replace(AT_FIRST, members=(member(partitions=[P0]), there))
    _, came, went = told(AT_FIRST, both, AT_FIRST)
    assert came[0] == MemberJoined(OTHER, (P1,), is_of_other_instance=True)
    assert str(came[0]) == f"run {OTHER} of another Dagster instance joined with orders:1"
    assert went[0] == MemberLeft(OTHER, LeaveReason.OTHER_INSTANCE, ())
    assert went[0].reason.in_good_order
    assert str(went[0]) == f"run {OTHER} of another Dagster instance left"
    crashed = replace(AT_FIRST, partitions=(commit(P0), commit(P1, OTHER)))
    assert told(AT_FIRST, both, crashed)[2][0] == MemberLeft(OTHER, LeaveReason.CRASHED, (P1,)), (
        "it owes its batch"
    )


@pytest.mark.parametrize(
    ("run", "is_back", "reason"),
    [
        pytest.param(Run(RunFate.SUCCEEDED), False, LeaveReason.GRACEFUL, id="done"),
        pytest.param(Run(RunFate.FAILED), False, LeaveReason.CRASHED, id="failed, or killed"),
        pytest.param(
            Run(RunFate.FAILED, FenceReport(FenceReason.INTERRUPTED)),
            False,
            LeaveReason.INTERRUPTED,
            id="SIGTERM",
        ),
        pytest.param(Run(RunFate.CANCELED), False, LeaveReason.CANCELED, id="canceled"),
        pytest.param(Run(RunFate.CANCELING), False, LeaveReason.CANCELED, id="about to be canceled"),
        pytest.param(AT_WORK, False, LeaveReason.UNRESPONSIVE, id="SIGSTOP: it says nothing"),
        pytest.param(
            replace(AT_WORK, fence_report=FenceReport(FenceReason.CLOSED)),
            False,
            LeaveReason.GRACEFUL,
            id="done, its run goes on",
        ),
        pytest.param(
            replace(AT_WORK, fence_report=FenceReport(FenceReason.POLL_TIMEOUT)),
            False,
            LeaveReason.POLL_TIMEOUT,
            id="poll timeout",
        ),
        pytest.param(
            replace(AT_WORK, fence_report=FenceReport(FenceReason.POLL_TIMEOUT, is_back=True)),
            True,
            LeaveReason.POLL_TIMEOUT,
            id="poll timeout, and back at once",
        ),
    ],
)
def test_who_left_no_marks_is_told_too(run, is_back, reason):
    """Others took its partitions, or it took them itself again, before anybody looked."""
    taken = [commit(P0, OTHER), commit(P1, OTHER)]
    before = group(member(), member(OTHER, "m-2"), runs={RUN: AT_WORK, OTHER: AT_WORK})
    members = [member(OTHER, "m-2"), *([member(member_id="m-3")] if is_back else [])]
    after = group(*members, commits=taken, runs={RUN: run, OTHER: AT_WORK})
    _, events, again = told(before, after, after)
    assert events[0] == MemberLeft(RUN, reason, (), is_back)
    assert not any(isinstance(event, MemberLeft) for event in [*events[1:], *again])


def test_a_departure_in_good_order_is_told_by_one_name():
    """A run that is canceled has left before Dagster says so."""
    released = group(state=GroupState.EMPTY, commits=RELEASED)
    canceled = replace(released, runs={RUN: Run(RunFate.CANCELED)})
    assert told(AT_FIRST, released, canceled)[2] == []
    canceling = replace(released, runs={RUN: Run(RunFate.CANCELING)})
    assert told(AT_FIRST, canceling)[1] == [MemberLeft(RUN, LeaveReason.CANCELED, (P0, P1)), GroupEmptied()]


def test_a_member_that_was_told_to_be_gone_only_joins_again():
    """Its departure had a name already."""
    silent = group(state=GroupState.EMPTY, commits=AT_FIRST.partitions)
    back = replace(AT_FIRST, members=(member(member_id="m-2"),))
    assert told(AT_FIRST, silent, back)[2] == [MemberJoined(RUN, (P0, P1)), RebalanceCompleted(1, None)]


def test_foreign_members_are_named_as_such():
    """A Java consumer comes and goes; nobody knows why it went, and no mark of ours is taken for its."""
    java = member("java-1 at 10.0.0.7", "j-1", (P1,), is_foreign=True)
    ours = member(partitions=(P0,))
    both = group(ours, java, commits=[commit(P0)])
    _, joined, left = told(AT_FIRST, both, AT_FIRST)
    assert joined == [MemberJoined(java.name, (P1,), is_foreign=True), RebalanceCompleted(2, None)]
    assert left == [MemberLeft(java.name, LeaveReason.EXTERNAL_CLIENT, ()), RebalanceCompleted(1, None)]
    assert str(joined[0]) == "external member java-1 at 10.0.0.7 joined with orders:1"


@pytest.mark.parametrize("name", ["consumer-orders-etl-prod-", "0badcafe", "mirror*"])
def test_a_foreign_member_is_one_whatever_it_is_called(name):
    """A client id may be long, look like a run's digits, or end in a star."""
    java = member(name, "j-1", (P1,), is_foreign=True)
    both = group(member(partitions=(P0,)), java, commits=[commit(P0)])
    assert told(both, AT_FIRST)[1][0] == MemberLeft(name, LeaveReason.EXTERNAL_CLIENT, ())


def test_a_rebalance_that_is_seen_has_a_beginning_an_end_and_a_length():
    """However many looks it takes, it is told twice."""
    moving = replace(AT_FIRST, state=GroupState.REBALANCING, members=(member(), member(OTHER, "m-2", ())))
    done = group(member(partitions=(P0,)), member(OTHER, "m-2", (P1,)), commits=AT_FIRST.partitions)
    looks = told(AT_FIRST, moving, moving, done, done)
    assert looks[1] == [MemberJoined(OTHER, ()), RebalanceStarted(2)]
    assert looks[2:] == [[], [RebalanceCompleted(2, 10.0)], []]


def test_a_group_that_is_deleted_is_told():
    """Empty and dead are two things: the second has no commits."""
    dead = replace(EMPTY, state=GroupState.DEAD)
    foreign = group(member("kcat at 10.0.0.7", is_foreign=True), runs={})
    left = MemberLeft("kcat at 10.0.0.7", LeaveReason.EXTERNAL_CLIENT, ())
    assert told(foreign, EMPTY, dead, dead)[1:] == [[left, GroupEmptied()], [GroupDied()], []]


def test_a_run_that_is_no_member_for_long_is_a_ghost_once():
    """At work in Dagster, unknown to the group.

    Told when it should be back, and again only after it was a member.
    """
    alone = group(state=GroupState.EMPTY, runs={RUN: replace(AT_WORK, fenced_for_seconds=70.0)})
    looks = told(AT_FIRST, *[alone] * 20, AT_FIRST, *[alone] * 20)
    ghosts = [
        (number, event)
        for number, look in enumerate(looks)
        for event in look
        if isinstance(event, GhostFound)
    ]
    assert ghosts == [(15, GhostFound(RUN, 70.0)), (36, GhostFound(RUN, 70.0))]


def test_a_run_whose_process_is_gone_crashed_though_it_is_in_progress_and_listed():
    """Killed with its code server: nobody tells Dagster. The broker lists it until its session is over."""
    gone = {RUN: replace(AT_WORK, process=ProcessStatus.GONE)}
    listed, alone = (
        replace(AT_FIRST, runs=gone),
        group(state=GroupState.EMPTY, commits=AT_FIRST.partitions, runs=gone),
    )
    first, second, *later = told(AT_FIRST, listed, alone, alone)[1:]
    assert first == [MemberLeft(RUN, LeaveReason.CRASHED, (P0, P1))]
    assert second == [GroupEmptied(), GhostFound(RUN, 5.0, gone=True)]
    assert later == [[]]
    taken = group(
        member(OTHER, "m-2"), commits=[commit(P0, OTHER), commit(P1, OTHER)], runs={**gone, OTHER: AT_WORK}
    )
    assert told(AT_FIRST, taken)[1][0] == MemberLeft(RUN, LeaveReason.CRASHED, ()), (
        "others have its partitions"
    )


def test_what_a_sleeping_machine_does_not_see_makes_no_ghost():
    """A laptop that was shut for hours: its runs slept too, and get the time that they had left."""
    alone = group(state=GroupState.EMPTY, runs={RUN: replace(AT_WORK, fenced_for_seconds=130.0)})
    _, memory = detect_events(None, alone, 1_000.0, GHOST_SECONDS)
    events, memory = detect_events(memory, alone, 30_000.0, GHOST_SECONDS)
    assert events == []
    assert memory.absent_runs[RUN].since == 29_940.0, "a minute counts"
    events, memory = detect_events(memory, alone, 30_060.0, GHOST_SECONDS)
    assert events == []
    assert detect_events(memory, alone, 30_070.0, GHOST_SECONDS)[0] == [GhostFound(RUN, 130.0)]


def test_a_catch_up_run_is_watched_too():
    """It is never a member: its signs of life are all there is."""
    catching = replace(AT_WORK, heartbeat_at=4, is_catch_up=True)
    looks = told(*[replace(EMPTY, catch_up={RUN: catching})] * 20)
    ghosts = [(number, event) for number, look in enumerate(looks) for event in look]
    assert ghosts == [(18, GhostFound(RUN, 90.0))]


@pytest.mark.parametrize(
    ("run", "commits"),
    [
        pytest.param(Run(RunFate.IN_PROGRESS), (), id="queued, or starting"),
        pytest.param(AT_WORK, RELEASED, id="released, and about to end"),
        pytest.param(Run(RunFate.SUCCEEDED), (), id="over"),
    ],
)
def test_who_is_no_ghost(run, commits):
    """Only a run at work that owes the group its membership is one."""
    looks = told(*[group(state=GroupState.EMPTY, commits=commits, runs={RUN: run})] * 20)
    assert not any(isinstance(event, GhostFound) for look in looks for event in look)


def test_a_large_group_is_remembered_in_part():
    """The memory is bounded; who is beyond it is told by the group's numbers."""
    crowd = [member(f"{n:08x}", f"m-{n}", ()) for n in range(MAX_REMEMBERED + 5)]
    _, memory = detect_events(None, group(*crowd, runs={}), 0.0, GHOST_SECONDS)
    assert len(memory.members) == MAX_REMEMBERED
    reordered, fewer = group(*crowd[::-1], runs={}), group(*crowd[3:], runs={})
    _, same, less = told(group(*crowd, runs={}), reordered, fewer)
    assert same == [], "the coordinator lists them in any order"
    assert not any(isinstance(event, MemberJoined) for event in less), (
        "who was there all the time did not join"
    )


def test_the_memory_of_departures_is_bounded():
    """A group with hundreds of dead scripts is told of the first ones only."""
    dead = [commit(TopicPartition("orders", n), run=f"{n:08x}") for n in range(MAX_REPORTED + 5)]
    events, memory = detect_events(
        None, group(state=GroupState.EMPTY, commits=dead, runs={}), 0.0, GHOST_SECONDS
    )
    assert len(events) == len(memory.reported_departures) == MAX_REPORTED


def test_a_rebalance_that_ends_without_members_is_no_rebalance():
    """The last member left: the group is empty, nothing was dealt."""
    moving = replace(AT_FIRST, state=GroupState.REBALANCING)
    assert told(AT_FIRST, moving, replace(EMPTY, partitions=tuple(RELEASED)))[2] == [
        MemberLeft(RUN, LeaveReason.GRACEFUL, (P0, P1)),
        GroupEmptied(),
    ]


def test_words():
    """Every event says who, what and how much."""
    many = tuple(TopicPartition("orders", n) for n in range(50))
    assert str(MemberJoined(RUN, many)).endswith("orders:4 and 45 more")
    assert str(MemberJoined(RUN, ())) == f"run {RUN} joined with no partition"
    assert str(MemberLeft(RUN, LeaveReason.CRASHED, ())) == f"run {RUN} crashed"
    back = MemberLeft(RUN, LeaveReason.POLL_TIMEOUT, (), is_back=True)
    assert str(back) == f"run {RUN} left by poll timeout and rejoined between two sensor ticks"
    assert str(MemberLeft("kcat at 10.0.0.7", LeaveReason.EXTERNAL_CLIENT, (P0,))).startswith(
        "external member kcat"
    )
    assert str(RebalanceStarted(2)) == "a rebalance began, with 2 members"
    assert (
        str(RebalanceCompleted(2, 7.4))
        == "the partitions were reassigned among 2 members, which took about 7 s"
    )
    assert str(RebalanceCompleted(1, None)) == "the partitions were reassigned among 1 member"
    assert str(GroupEmptied()) == "the group has no member any more"
    assert str(GroupDied()) == "the group does not exist any more"
    assert str(GhostFound(RUN, 60.0)) == f"run {RUN} is in progress, but has shown no activity for 60 s"
    assert str(GhostFound(RUN, 0.0, gone=True)) == f"run {RUN} is in progress, but its process is gone"


def test_what_is_forgotten_is_told_once_and_remembered_until_it_is_done():
    """By whom, where a external member is there; while it is owed again nothing new is told."""
    left = (Span(70, 120),)
    lost = PartitionSnapshot(P0, 120, None, log_end=120, outstanding=left, forgotten_pending=left)
    owed = PartitionSnapshot(
        P0, 120, LiveCommitMetadata(OwnerState.RUNNING, RUN, left), log_end=120, outstanding=left
    )
    done = PartitionSnapshot(P0, 120, LiveCommitMetadata(OwnerState.RUNNING, RUN), log_end=120)
    kcat = member("kcat at 10.0.0.7", "m-2", (P0,), is_foreign=True)
    memory, out = None, []
    for n, seen in enumerate(
        [group(kcat, commits=[lost]), group(member(), commits=[owed]), group(commits=[done])]
    ):
        events, memory = detect_events(memory, seen, n * 5.0, GHOST_SECONDS)
        out.append(
            ([event for event in events if isinstance(event, CrashLagForgotten)], memory.forgotten_ranges)
        )
    told_first = CrashLagForgotten("p0:orders:70-120", 50, ("kcat at 10.0.0.7",))
    assert out == [([told_first], ("p0:orders:70-120",)), ([], ("p0:orders:70-120",)), ([], ())]
    assert str(told_first).endswith("kcat at 10.0.0.7 replaced the commit that listed it")
    assert "a client that is not in the group now" in str(CrashLagForgotten("p0:orders:70-120", 50))


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (GhostFound("0badcafe", 61.3), "GhostFound 0badcafe"),
        (MemberJoined("0badcafe", (P0,)), "MemberJoined 0badcafe"),
        (MemberLeft("0badcafe", LeaveReason.CRASHED, (P0,)), "MemberLeft 0badcafe CRASHED"),
        (CrashLagFound("p0:orders:70-120", 50), "CrashLagFound p0:orders:70-120"),
        (RebalanceCompleted(2, 3.5), "RebalanceCompleted"),
        (GroupEmptied(), "GroupEmptied"),
    ],
)
def test_an_event_keeps_its_identity_when_a_look_is_repeated_later(event, name):
    """Seconds, counts and partitions may differ by then: a run key made of them would start a second run."""
    assert event_identity(event) == name


def test_a_range_without_a_partition_is_named_with_its_size():
    """The sentence has the key that a backfill takes."""
    assert (
        str(CrashLagFound("p0:orders:70-1070", 1_000))
        == "crash lag p0:orders:70-1070, 1,000 offsets, is pending"
    )


@pytest.mark.parametrize(
    ("event", "crashed"),
    [
        (MemberLeft("0badcafe", LeaveReason.CRASHED, ()), ["0badcafe"]),
        (MemberLeft("0badcafe", LeaveReason.CRASHED, (), is_back=True), []),
        (MemberLeft("0badcafe", LeaveReason.GRACEFUL, ()), []),
        (GhostFound("0badcafe", 5.0, gone=True), ["0badcafe"]),
        (GhostFound("0badcafe", 600.0), []),
        (GroupEmptied(), []),
    ],
)
def test_a_run_has_crashed_only_if_its_end_is_certain(event, crashed):
    """The sensor ends the Spark session of a crashed run; one that may be at work keeps it."""
    assert crashed_runs([event]) == crashed
