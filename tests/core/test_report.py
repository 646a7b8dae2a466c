"""The report of a group: what the table lacked at each moment, and what each crash cost."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.events import LeaveReason
from kafka_liveness_dagster.core.freshness import ServiceLevel
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.report import (
    BUCKETS,
    Backfill,
    Departure,
    GroupHistory,
    Interval,
    Report,
    format_share,
    merge,
    total,
    wanted_positions,
)
from kafka_liveness_dagster.core.table_history import Step, TableCommit, find_gaps, partition_steps

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
RUN, NEXT = "0badcafe", "0000beef"
CRASHED = Departure(40.0, RUN, LeaveReason.CRASHED)
SLA = ServiceLevel(fresh_seconds=20.0, complete_seconds=60.0)


def commit(at, *spans, tp=P0):
    """A commit of one partition."""
    return TableCommit(at, {tp: tuple(Span(*span) for span in spans)}, sum(e - s for s, e in spans))


def report(commits, *, since=0.0, until=240.0, sla=SLA, timestamps=None, partitions=(P0,), **more):
    """A report of a topic with a record a second in each partition, unless told otherwise."""
    steps = {tp: partition_steps(tp, commits, until=until, origin=0) for tp in partitions}
    wanted = [one for parts in steps.values() for one in wanted_positions(parts)]
    known = {(tp, offset): float(offset) for tp, offset in wanted} if timestamps is None else timestamps
    facts = {"known_since": commits[0].at if commits else until, "commits": commits, **more}
    return Report(GroupHistory("orders-etl", since, until, steps=steps, timestamps=known, **facts), sla)


# A run commits every 10 s and crashes at 40. The next one skips to 100, and commits from 110 on; a backfill
# closes the gap at 190
STORY = [
    *(commit(at, (at - 10, at)) for at in range(10, 40, 10)),
    *(commit(at, (at - 10, at)) for at in range(110, 190, 10)),
    commit(190, (30, 100), (180, 190)),
    *(commit(at, (at - 10, at)) for at in range(200, 240, 10)),
]


def test_steps_of_a_partition():
    """A later offset makes the earlier ones missing; the same state is no new step."""
    commits = [
        commit(10, (0, 5)),
        TableCommit(12, {}),
        commit(14, (0, 5)),
        commit(20, (8, 9)),
        commit(30, (5, 8)),
    ]
    assert partition_steps(P0, commits, until=40.0) == [
        Step(P0, 10, 20, 5), Step(P0, 20, 30, 9, (Span(5, 8),)), Step(P0, 30, 40.0, 9),
    ]  # fmt: skip
    assert partition_steps(P0, commits, until=25.0)[-1] == Step(P0, 20, 25.0, 9, (Span(5, 8),))
    written_off = partition_steps(P0, commits, until=40.0, written_off=[Span(6, 8)])
    assert written_off[1].missing == (Span(5, 6),)
    truncated = partition_steps(P0, commits[3:], until=40.0, origin=0, base=[Span(0, 5)])
    assert truncated[0] == Step(P0, 20, 30, 9, (Span(5, 8),))
    assert partition_steps(P1, commits, until=40.0, origin=3) == [Step(P1, 10, 40.0, 3)]
    assert partition_steps(P1, commits, until=40.0) == [Step(P1, 10, 40.0, 0)]
    assert partition_steps(P0, commits, until=5.0) == []
    assert (partition_steps(P0, [], until=40.0), find_gaps([])) == ([], [])
    skips = [(5.0, 7), (15.0, 8), (50.0, 90)]
    assert partition_steps(P0, commits[:1], until=40.0, skips=skips) == [
        Step(P0, 10, 15.0, 5), Step(P0, 15.0, 40.0, 8, (Span(5, 8),)),
    ]  # fmt: skip


def test_a_crash_and_its_backfill():
    """20 s of a crash are within the limit; then the table is late until the next live commit."""
    found = report(
        STORY,
        departures=[CRASHED],
        live_starts=[0.0, 100.0],
        skipped={OffsetRange("orders", 0, 30, 100): RUN},
    )
    [incident] = found.incidents
    assert incident.departure.is_crash
    assert incident.fresh_missed == found.fresh_missed == [Interval(50.0, 110)]
    assert found.complete_missed == [Interval(90.0, 190)], "by the age of offset 30, in both lanes"
    assert (incident.resumed_after_seconds, incident.caught_up_after_seconds) == (70, 150)
    assert (incident.skipped_offsets, incident.pending_offsets, incident.missed_seconds) == (70, 0, 140)
    assert found.known_seconds == 230
    assert found.unknown == [Interval(0.0, 10)]
    assert found.share == pytest.approx(1 - 140 / 230)
    assert (found.fresh_share, found.complete_share) == (
        pytest.approx(1 - 60 / 230),
        pytest.approx(1 - 100 / 230),
    )
    assert (found.unattributed_seconds, found.is_well, len(found.crashes), found.fences) == (0, False, 1, [])
    assert found.verdict == ("orders-etl missed its SLA for 2 min 20 s of the known 3 min 50 s: kept 39.13 %")
    assert found.summary == "1 crash, 0 fences, at most 1 min 20 s behind, 0 offsets pending at the end"
    assert len(found.live_commit_times) == len(STORY), "one of them is of both lanes"


def test_an_idle_topic_after_a_crash():
    """The live lane skipped to the log end and has nothing to write: no commit of the table shows it."""
    commits = [commit(10, (0, 10)), TableCommit(100.0, {}), commit(190, (10, 30))]
    steps = {P0: partition_steps(P0, commits, until=240.0, origin=0, skips=[(50.0, 30)])}
    known = {(P0, 10): 10.0}
    history = GroupHistory(
        "orders-etl", 0.0, 240.0, known_since=10.0, steps=steps, commits=commits, timestamps=known,
        departures=[Departure(20.0, RUN, LeaveReason.CRASHED)],
    )  # fmt: skip
    found = Report(history, SLA)
    [incident] = found.incidents
    assert incident.fresh_missed == [Interval(30.0, 50.0)]
    assert incident.complete_missed == [Interval(70.0, 190)]
    assert (incident.skipped_offsets, incident.caught_up_after_seconds) == (20, 170)
    assert (found.live_commit_times, incident.resumed_after_seconds) == ([10], None)
    assert found.points[-50].backfilled_rows == 20


def idle(*, joins, commits=(), departure=CRASHED, **facts):
    """The incident of a crash at 40 behind which all 30 records were written; record 30 arrives at 200."""
    arrivals = {(P0, offset): float(offset) for offset in (0, 10, 20)} | {(P0, 30): 200.0}
    found = report(
        [*STORY[:3], *commits], timestamps=arrivals, departures=[departure], joins=joins, **facts
    )  # fmt: skip
    [incident] = found.incidents
    return incident.resumed_after_seconds, incident.unread_after_seconds


def test_the_next_run_on_an_idle_topic():
    """It is live as soon as it is in the group; the commit of a later record does not show that."""
    later = [commit(203, (30, 31))]
    assert idle(joins=[(39.0, NEXT), (41.0, RUN), (44.0, NEXT)], commits=later) == (4, None)
    assert idle(joins=[(41.0, RUN)], commits=later) == (163, 160), "the run that crashed joined before"
    fence = Departure(40.0, RUN, LeaveReason.POLL_TIMEOUT)
    assert idle(joins=[(41.0, RUN)], commits=later, departure=fence) == (1, None), "it is back"
    assert idle(joins=[(201.0, NEXT)], commits=later) == (163, 160), "a record was unread when it joined"
    assert idle(joins=[(210.0, NEXT)]) == (None, 160), "and still is"
    assert idle(joins=[(44.0, NEXT)], unread={(P0, 30)}) == (None, 0), "unknown is not idle"
    assert idle(joins=[(44.0, NEXT)], known_since=45.0) == (None, 0), "there is no history"


def test_a_run_that_skipped_ahead_with_nothing_to_write():
    """The skip is reported seconds after it joined; then nothing is unread."""
    commits = [commit(10, (0, 10))]
    steps = {P0: partition_steps(P0, commits, until=240.0, origin=0, skips=[(50.0, 30)])}
    history = GroupHistory(
        "orders-etl", 0.0, 240.0, known_since=10.0, steps=steps, commits=commits, timestamps={(P0, 10): 10.0},
        departures=[Departure(20.0, RUN, LeaveReason.CRASHED)], joins=[(44.0, NEXT)],
    )  # fmt: skip
    [incident] = Report(history, SLA).incidents
    assert (incident.resumed_after_seconds, incident.unread_after_seconds) == (30, 0)


def test_a_run_that_crashed_may_still_commit():
    """Spark may finish its write: the group is live again with the next run."""
    late = [*STORY[:3], commit(41, (30, 35)), *STORY[3:]]
    for starts, seconds in (([100.0], 70), ([], 1)):
        [incident] = report(late, departures=[CRASHED], live_starts=starts).incidents
        assert incident.resumed_after_seconds == seconds
    fence = Departure(40.0, RUN, LeaveReason.POLL_TIMEOUT)
    found = report(late, departures=[fence], live_starts=[100.0])
    assert (found.fences[0].resumed_after_seconds, found.crashes) == (1, [])
    [never] = report(STORY[:3], departures=[CRASHED]).incidents
    assert never.resumed_after_seconds is None


def test_crash_lag_that_stays_pending():
    """It costs until the end of the span."""
    pending = [one for one in STORY if one.at != 190]
    found = report(pending, departures=[CRASHED])
    [incident] = found.incidents
    assert (incident.pending_offsets, incident.caught_up_after_seconds) == (70, None)
    assert incident.complete_missed[-1].end == 240
    assert found.pending_offsets == 80, "and 10 for which no crash is the cause"


def test_without_a_known_cause():
    """A slow live lane and a range that no crash explains cost time that no incident has."""
    found = report(STORY)
    assert (found.incidents, found.unattributed_seconds) == ([], 140)


def test_several_departures_in_one_outage():
    """Each counts from its own moment; one that is noticed late counts from the begin."""
    second = Departure(70.0, NEXT, None)
    found = report(STORY, departures=[CRASHED, second], skipped={OffsetRange("orders", 0, 30, 100): RUN})
    first, failed = found.incidents
    assert (first.fresh_missed, failed.fresh_missed) == ([Interval(50.0, 70.0)], [Interval(70.0, 110)])
    assert (failed.departure.is_crash, failed.departure.text) == (True, "failed before it joined the group")
    assert first.departure.text == "crashed"
    # The gap counts for the run that Dagster names; without a name for the last one before it
    assert (first.skipped_offsets, failed.skipped_offsets) == (70, 0)
    assert report(STORY, departures=[CRASHED, second]).incidents[1].skipped_offsets == 70
    # Its snapshots have expired, and Dagster has the range
    steps = {P0: partition_steps(P0, STORY[-3:], until=240.0, base=[Span(0, 210)])}
    facts = {
        "known_since": 210.0,
        "departures": [CRASHED],
        "skipped": {OffsetRange("orders", 0, 30, 100): RUN},
    }
    [known] = Report(GroupHistory("orders-etl", 0.0, 240.0, steps=steps, **facts), SLA).incidents
    assert (known.skipped_offsets, known.pending_offsets, known.caught_up_after_seconds) == (70, 0, None)
    late = report(STORY, departures=[Departure(80.0, RUN, LeaveReason.CRASHED)])
    assert late.incidents[0].fresh_missed == [Interval(50.0, 110)]


def test_a_lane_that_catches_up_in_order():
    """The time after the next commit counts for the same crash, until the lane is fresh again."""
    steps = [
        *STORY[:3],
        commit(110, (30, 50)),
        commit(115, (50, 112)),
        *(commit(at, (at - 8, at)) for at in (120,)),
    ]
    found = report(steps, until=130.0, departures=[CRASHED])
    assert found.incidents[0].fresh_missed == [Interval(50.0, 115)]
    busy = report(
        [commit(10, (0, 10)), commit(60, (10, 55)), commit(90, (55, 89))], until=95.0, departures=[CRASHED]
    )
    assert busy.fresh_missed == [Interval(30.0, 60), Interval(75.0, 90)]
    assert busy.incidents[0].fresh_missed == [Interval(30.0, 60)]
    assert busy.unattributed_seconds == 15


def test_an_earlier_crash_that_costs_time_in_the_span():
    """It is listed; one that costs nothing is not."""
    skipped = {OffsetRange("orders", 0, 30, 100): RUN, OffsetRange("orders", 1, 30, 100): NEXT}
    other = Departure(35.0, NEXT, LeaveReason.CRASHED)
    found = report(STORY, since=150.0, departures=[other, CRASHED], skipped=skipped)
    assert [one.departure.run for one in found.incidents] == [RUN]
    assert found.incidents[0].missed_seconds == 40
    assert (found.incidents[0].resumed_after_seconds, found.crashes) == (None, [])
    assert found.unknown == []
    assert " for 40 s of 1 min 30 s: kept" in found.verdict


def test_unknown_times():
    """Deleted records, records that could not be read, and the time before the history."""
    whole = report(STORY)
    position = (P0, 30)
    for facts in ({"log_starts": {P0: 31}}, {"unread": {position}}):
        found = report(STORY, **facts)
        assert Interval(30, 190) in found.unknown or any(one.end == 190 for one in found.unknown)
        assert found.known_seconds < whole.known_seconds
        assert any(one.seconds_behind is None for one in found.points)
    first = commit(1, (0, 1), tp=P1)
    both = [first, *STORY]
    dark = report(both, partitions=(P0, P1), unread={(P1, 1)})
    assert dark.unknown == [Interval(0.0, 50.0), Interval(190, 240.0)], "a late partition is enough"
    assert (dark.known_seconds, dark.share) == (140, 0.0)
    known = {(P0, offset): float(offset) for offset in (0, 10, 20, 30, 110)}
    both = [first, *STORY[:2], commit(30, (1, 2), tp=P1), *STORY[2:]]
    dark = report(both, partitions=(P0, P1), unread={(P1, 1)}, timestamps=known)
    assert dark.unknown == [Interval(0.0, 30)]
    nothing = report([], departures=[CRASHED])
    assert (nothing.share, nothing.known_seconds, nothing.worst_behind) == (None, 0, None)
    assert nothing.verdict == "unknown: no facts about orders-etl in 4 min; see the notes"
    assert nothing.is_well


def test_a_record_that_does_not_exist_yet_is_not_late():
    """An idle topic is fresh."""
    idle = report(STORY[:3], timestamps={})
    assert (idle.missed, idle.worst_behind, idle.share) == ([], 0.0, 1.0)
    assert idle.verdict == "orders-etl kept its SLA 100 % of the known 3 min 50 s"


def test_without_an_sla():
    """The facts, and no share."""
    found = report(STORY, sla=ServiceLevel(), departures=[CRASHED])
    assert (found.share, found.fresh_share, found.complete_share, found.missed) == (None, None, None, [])
    assert found.verdict.startswith("no SLA is known for orders-etl: declare sla")
    assert found.summary.startswith("1 crash, 0 fences, at most 1 min 20 s")
    unknown = report([commit(10, (0, 9))], unread={(P0, 9)}, sla=ServiceLevel())
    assert unknown.verdict.startswith("unknown: no facts")


def test_the_plots():
    """A point has the largest value in its bucket, so no short peak is left out."""
    found = report(STORY, log_ends=[(1.0, {P0: 1, P1: 9}), (100.0, {P0: 100}), (240.0, {P0: 240})])
    assert len(found.points) == BUCKETS
    at = {round(one.at): one for one in found.points}
    assert (at[5].seconds_behind, at[5].pending_offsets, at[5].lag) == (None, None, None)
    assert (at[110].seconds_behind, at[110].pending_offsets, at[110].pending_age_seconds) == (80.0, 0, 0.0)
    assert (at[100].lag, at[240].lag, at[99].lag) == (70, 10, None)
    assert (at[150].pending_offsets, at[150].pending_age_seconds) == (70, 120.0)
    assert (at[191].pending_offsets, at[191].live_rows, at[191].backfilled_rows) == (0, 80, 0)
    separate = [*STORY[:11], commit(185, (30, 100)), *STORY[12:]]
    rows = {round(one.at): (one.live_rows, one.backfilled_rows) for one in report(separate).points}
    assert rows[186] == (0, 70)
    assert found.worst_behind == 80.0


def test_shares():
    """Only a full share is 100 %."""
    assert [format_share(one) for one in (0.99996, 1.0, None)] == ["99.99 %", "100 %", "unknown"]


def test_intervals():
    """Times that overlap count once."""
    assert merge([Interval(2, 4), Interval(1, 3), Interval(6, 6)]) == [Interval(1, 4)]
    assert total([Interval(1, 3), Interval(2, 4)]) == 3
    assert Backfill(1.0, None, RUN, "STARTED").end is None
