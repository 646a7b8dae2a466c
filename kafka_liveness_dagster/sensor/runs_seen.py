"""What does Dagster know of the runs of a group, and does a process work for those in progress? Read-only."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.membership import Run, RunFate
from kafka_liveness_dagster.core.processes import Word
from kafka_liveness_dagster.core.run_marks import dagster_run_of_client, run_mark
from kafka_liveness_dagster.runs.signs import word_of
from kafka_liveness_dagster.runs.tags import AWAY_TAG, GROUP_TAG, LANE_TAG, is_in_lane, place_tag, sign_of, why_away

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kafka_liveness_dagster.core.group_snapshot import GroupSnapshot, MemberSeen
    from kafka_liveness_dagster.kafka.answers import GroupMember


def by_lane(records: Iterable[dg.RunRecord]) -> dict[str, list[dg.RunRecord]]:
    """Those of each lane; a run says which it is of in a tag."""
    found: dict[str, list[dg.RunRecord]] = {"live": [], "catch-up": []}
    for record in records:
        found.get(record.dagster_run.tags.get(LANE_TAG, ""), []).append(record)
    return found


def newest_first(recent: Sequence[dg.RunRecord], in_progress: Iterable[dg.RunRecord]) -> list[dg.RunRecord]:
    """The recent runs, and those in progress that are older: one for which nobody works may be."""
    known = {record.dagster_run.run_id for record in recent}
    return [*recent, *(record for record in in_progress if record.dagster_run.run_id not in known)]


def runs_of(records: Iterable[dg.RunRecord]) -> dict[str, Run]:
    """Each under its 8 hex digits."""
    return {run_mark(record.dagster_run.run_id): _run(record.dagster_run) for record in records}


def of_this_instance(
    instance: dg.DagsterInstance,
    seen: Iterable[MemberSeen],
    told: Sequence[GroupMember],
    records: Iterable[dg.RunRecord],
) -> tuple[MemberSeen, ...]:
    """The members, each with whether its run is another Dagster instance's.

    Runs that are not among the records are asked for, after the broker has listed the members.

    Of a static member the coordinator may show the client id of a run that has been deleted since: nothing is said.
    """
    ids = {member.member_id: dagster_run_of_client(member.client_id) for member in told}
    known = {record.dagster_run.run_id for record in records}
    wanted = [run for run in ids.values() if run is not None and run not in known]
    if wanted:
        known |= {run.run_id for run in instance.get_runs(dg.RunsFilter(run_ids=wanted))}
    return tuple(
        replace(member, is_elsewhere=not member.is_static and ids[member.member_id] not in {None, *known})
        for member in seen
    )


def asked_again(instance: dg.DagsterInstance, seen: GroupSnapshot, records: Iterable[dg.RunRecord]) -> GroupSnapshot:
    """The same with what is known of the processes of its runs, and why those are away that are no members.

    Dagster is asked last: a run that left between the two looks said why before it left, and a process that is gone
    may have ended its run before it went.
    """
    members, now = seen.listed, time.time()
    known = {**seen.runs, **seen.catch_up}
    away: dict[str, str] = {}
    for record in records:
        run, mark = record.dagster_run, run_mark(record.dagster_run.run_id)
        if run.is_finished:
            continue
        word = word_of(instance, record, now, away=mark not in members)
        known[mark] = replace(known[mark], process=word)
        if mark not in members or word is Word.GONE:
            away[run.run_id] = mark
    for run in instance.get_runs(dg.RunsFilter(run_ids=list(away))) if away else []:
        mark = away.pop(run.run_id)
        one = replace(known[mark], away=why_away(run))
        if run.is_finished:  # since the first look: it is no departure yet, unless it was killed
            killed = one.process is Word.GONE and run.status is dg.DagsterRunStatus.FAILURE
            one = replace(one, process=Word.UNKNOWN, fate=RunFate.FAILED if killed else one.fate)
        known[mark] = one
    for mark in away.values():  # deleted
        known[mark] = replace(known[mark], process=Word.UNKNOWN)
    return replace(seen, runs={r: known[r] for r in seen.runs}, catch_up={r: known[r] for r in seen.catch_up})


def _run(run: dg.DagsterRun) -> Run:
    at_work = run.status in (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
    return Run(
        fate(run),
        why_away(run),
        at_work,
        beat=sign_of(run).beat,
        is_over=not (run.is_finished or is_in_lane(run)),
        away_seconds=float(away) if (away := run.tags.get(AWAY_TAG)) else None,
        is_catch_up=run.tags.get(LANE_TAG) == "catch-up",
        place=run.tags.get(place_tag(run.tags.get(GROUP_TAG, ""))) or None,
    )


def fate(run: dg.DagsterRun) -> RunFate:
    """What became of a run."""
    if not run.is_finished:
        return RunFate.CANCELING if run.status is dg.DagsterRunStatus.CANCELING else RunFate.IN_PROGRESS
    return {
        dg.DagsterRunStatus.SUCCESS: RunFate.SUCCEEDED,
        dg.DagsterRunStatus.CANCELED: RunFate.CANCELED,
    }.get(run.status, RunFate.FAILED)
