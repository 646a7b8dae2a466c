"""Mutants of the data plane and of the sensor."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_GROUP_LOOKS = "tests/test_group_looks.py::"

_SENSOR = (
    Mutant(
        name="the sensor does not read the second commit log",
        file="sensor/look.py",
        old="second = cluster.commits(group_id + CATCH_UP_SUFFIX, owing) if owing else {}",
        new="second = {}",
        killed_by=f"{_GROUP_LOOKS}test_offsets_that_the_second_commit_log_has_as_done_are_not_pending",
        invariant="assert ['orders:3:70-100'] == ['orders:3:80-90']",
    ),
    Mutant(
        name="the sensor reads the first commit log twice",
        file="sensor/look.py",
        old="second = cluster.commits(group_id + CATCH_UP_SUFFIX, owing) if owing else {}",
        new="second = cluster.commits(group_id, owing) if owing else {}",
        killed_by=f"{_GROUP_LOOKS}test_offsets_that_the_second_commit_log_has_as_done_are_not_pending",
        invariant="ForeignCommitError",
    ),
    Mutant(
        name="lag on paused partitions requests a live run",
        file="core/restarts.py",
        old="any(seen.lag for seen in partitions if not seen.paused)",
        new="any(seen.lag for seen in partitions)",
        killed_by=f"{_GROUP_LOOKS}test_no_live_run_is_requested_for_lag_on_paused_partitions",
        invariant="RunRequest",
    ),
    Mutant(
        name="crash lag of a paused partition requests a run",
        file="sensor/run_requests.py",
        old="owed = look.still_owed(missing(), paused=False)",
        new="owed = look.still_owed(missing())",
        killed_by=f"{_GROUP_LOOKS}test_crash_lag_of_a_paused_partition_is_not_caught_up",
        invariant="assert ['orders:3:70-100'] == []",
    ),
    Mutant(
        name="the runs in progress are not queried again before a live run is requested",
        file="sensor/run_requests.py",
        old='            in_progress = self._in_progress(instance, "live", ghosts)\n',
        new="",
        killed_by=f"{_GROUP_LOOKS}test_a_live_run_that_started_after_the_observation_leaves_no_room_for_another",
        invariant="job_name='orders_job'",
    ),
    Mutant(
        name="the runs in progress are not queried before a catch-up run is requested",
        file="sensor/run_requests.py",
        old='not look.owed or self._in_progress(instance, "catch-up", ghosts):',
        new="not look.owed:",
        killed_by=f"{_GROUP_LOOKS}test_one_partition_is_caught_up_at_a_time",
        invariant="assert ['orders:3:70-90'] == []",
    ),
    Mutant(
        name="the wrong lane is queried before a catch-up run is requested",
        file="sensor/run_requests.py",
        old='self._in_progress(instance, "catch-up", ghosts):',
        new='self._in_progress(instance, "live", ghosts):',
        killed_by=f"{_GROUP_LOOKS}test_one_partition_is_caught_up_at_a_time",
        invariant="assert ['orders:3:70-90'] == []",
    ),
    Mutant(
        name="a departure gets its reason from the runs as they were before the members",
        file="sensor/runs_seen.py",
        old="    for run in instance.get_runs(dg.RunsFilter(run_ids=list(away))) if away else []:",
        new="    for run in [one.dagster_run for one in records if one.dagster_run.run_id in away]:",
        killed_by=f"{_GROUP_LOOKS}test_the_reason_of_a_departure_is_read_after_the_members",
        invariant="LeaveReason.POLL_TIMEOUT",
    ),
    Mutant(
        name="a run that is deleted during the observation counts as killed",
        file="sensor/runs_seen.py",
        old="    for mark in away.values():  # deleted\n        known[mark] = replace(known[mark], process=Word.UNKNOWN)\n",
        new="",
        killed_by="tests/test_signs.py::test_dagster_is_asked_again_after_the_process",
        invariant="Word.GONE",
    ),
    Mutant(
        name="members that are older runs count as another instance's",
        file="sensor/runs_seen.py",
        old="        known |= {run.run_id for run in instance.get_runs(dg.RunsFilter(run_ids=wanted))}",
        new="        pass",
        killed_by=f"{_GROUP_LOOKS}test_a_run_that_dagster_lists_no_longer_among_the_newest_is_of_this_instance",
        invariant="assert [True] == [False]",
    ),
    Mutant(
        name="a run that ended after the observation is reported as failed",
        file="sensor/ghosts.py",
        old="run = instance.get_run_by_id(known.run_id) if known is not None else None",
        new="run = known",
        killed_by=f"{_GROUP_LOOKS}test_a_run_that_ended_after_the_observation_is_not_reported_as_failed",
        invariant="assert True is False",
    ),
    Mutant(
        name="the commit logs are not read again after the partitions",
        file="sensor/sensor.py",
        old="            look = self._look(cluster, instance, table, must_ask=forgotten or tells)\n",
        new="",
        killed_by=f"{_GROUP_LOOKS}test_a_range_that_is_caught_up_during_a_tick_does_not_become_a_partition",
        invariant="== ['orders:3:70-100']",
    ),
)

MUTANTS: tuple[Mutant, ...] = (*_SENSOR,)
