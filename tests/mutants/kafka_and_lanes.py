"""Mutants of the control plane and of the lanes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_COMMITS = "tests/wire/test_member_commits.py::test_"
_SECOND = "tests/wire/test_second_log.py::test_"
_FENCE = "tests/wire/test_fence.py::test_"
_CATCH_UP = "tests/wire/test_catch_up.py::test_"
_LIVE = "tests/wire/test_live_lane.py::test_"
_MEMBERSHIPS = "tests/wire/test_memberships.py::test_"
_PIPELINE = "tests/test_pipeline.py::test_"
_LANES = "tests/test_lanes.py::test_"
_LEDGER = "tests/test_ledger_of_a_table.py::test_"
_SINCE = "places.get(one.since, -1) > place or one.since not in snapshots"
_LEAVE_OLD = "            before.leave(why)  # who raised the fence may not have come to it yet\n"
_PAUSE = "        if partitions:\n            client.pause(partitions)\n"
_RECORD = "        self._second.record(batch.done, self._watchdog.check)\n"
_WROTE = "        self._proof.wrote(batch.done)\n"
_PUT = "        self._second().put({tp: (facts[tp].second, self._second_of(r)) for tp, r in resumed.items()})\n"
_ADOPT = """\
        self.member.adopt(
            {
                tp: Owned(
                    r.position, r.position, r.owed, arrived[tp], r.paused, r.again, r.origin if self._witness else None
                )
                for tp, r in resumed.items()
            }
        )
"""

MUTANTS: tuple[Mutant, ...] = (
    # What a member commits
    Mutant(
        name="a commit keeps partitions that were handed over",
        file="kafka/ownership.py",
        old="return {tp: one for tp, one in owned.items() if self.owned.get(tp) is one}",
        new="return dict(owned)",
        killed_by=f"{_COMMITS}a_commit_that_waited_for_a_rebalance_leaves_out_what_was_handed_over",
        invariant="only what is still owned may be committed",
    ),
    Mutant(
        name="a commit may leave a gap",
        file="kafka/ownership.py",
        old="if done[tp].start != one.committed:",
        new="if done[tp].start < one.committed:",
        killed_by=f"{_COMMITS}a_span_that_does_not_follow_on_the_commit_is_refused",
        invariant="DID NOT RAISE CommitRefusedError",
    ),
    Mutant(
        name="what was planned is not planned again after a refused commit",
        file="kafka/ownership.py",
        old="one.position = one.committed",
        new="pass",
        killed_by=f"{_COMMITS}after_a_refused_commit_all_that_was_planned_is_planned_again",
        invariant="planning goes back to the commit",
    ),
    Mutant(
        name="what a commit leaves out is not owed",
        file="kafka/member.py",
        old="owing = {tp: owned.owing(left_out(tp)) for tp, owned in mine.items()}",
        new="owing = dict(mine)",
        killed_by=f"{_COMMITS}what_a_commit_leaves_out_is_owed_from_that_commit_on",
        invariant="owed=(Span(start=75, end=76),)",
    ),
    Mutant(
        name="marks of a release are given up in a rebalance",
        file="kafka/first_log.py",
        old="if not is_held_up(error) or time.monotonic() >= give_up_at:",
        new="if is_held_up(error) or time.monotonic() >= give_up_at:",
        killed_by=f"{_COMMITS}marks_of_a_release_are_repeated_while_a_rebalance_holds_them_up",
        invariant="released partitions are marked",
    ),
    Mutant(
        name="an error of a single partition in a commit is swallowed",
        file="kafka/committing.py",
        old="            if errors:\n                return errors[0]\n",
        new="            if errors:\n                continue\n",
        killed_by=f"{_COMMITS}an_error_of_a_single_partition_refuses_the_commit",
        invariant="DID NOT RAISE KafkaRefusedError",
    ),
    Mutant(
        name="assigned partitions are fetched",
        file="kafka/rebalance.py",
        old=_PAUSE,
        new=_PAUSE.replace("client.pause(partitions)", "pass"),
        killed_by=f"{_COMMITS}a_member_fetches_nothing_of_what_it_is_given",
        invariant="assigned partitions are paused",
    ),
    # The second log
    Mutant(
        name="a renewal forgets what it has seen",
        file="kafka/second_log.py",
        old="self._write({tp: self._seen[tp] for tp in partitions if tp in self._seen})",
        new="self._write({tp: now[tp] for tp in partitions if tp in now})",
        killed_by=f"{_SECOND}a_log_that_has_expired_is_renewed_as_it_was_seen_last",
        invariant="an expired log is written again",
    ),
    Mutant(
        name="a record is not looked at after it was written",
        file="kafka/second_log.py",
        old='for tp, log in logs.items()})\n        raise self._lost_writes("done")\n',
        new='for tp, log in logs.items()})\n            return\n        raise self._lost_writes("done")\n',
        killed_by=f"{_SECOND}a_record_is_looked_at_and_repeated_until_it_lasts",
        invariant="the record has to last",
    ),
    Mutant(
        name="the second log is committed to the live group",
        file="kafka/second_log.py",
        old="config = kafka.committer(group_id + CATCH_UP_SUFFIX, ",
        new="config = kafka.committer(group_id, ",
        killed_by=f"{_SECOND}the_second_log_is_a_group_of_its_own",
        invariant="['orders-etl'] == ['orders-etl.catch-up']",
    ),
    # The fence
    Mutant(
        name="a batch is open while the fence is up",
        file="kafka/fence.py",
        old="return self._watchdog.reason is None and self._is_of_now(batch)",
        new="return self._is_of_now(batch)",
        killed_by=f"{_FENCE}no_batch_is_open_while_the_fence_is_up",
        invariant="a batch is closed while the fence is up",
    ),
    Mutant(
        name="a batch of a former membership passes",
        file="kafka/fence.py",
        old="        if not self._is_of_now(batch):\n",
        new="        if not self._begun:\n",
        killed_by=f"{_FENCE}a_batch_of_a_former_membership_stays_closed",
        invariant="DID NOT RAISE FencedError",
    ),
    Mutant(
        name="a commit does not look at the batch's epoch",
        file="kafka/commits.py",
        old="        self._fence.check_epoch(done)\n",
        new="        self._fence.check()\n",
        killed_by=f"{_FENCE}a_batch_is_not_committed_after_the_membership_that_planned_it",
        invariant="DID NOT RAISE FencedError",
    ),
    Mutant(
        name="a deadline that was met raises the fence",
        file="kafka/watchdog.py",
        old="outdated = reason is FenceReason.POLL_TIMEOUT and not self._timer.expired(now_ms())",
        new="outdated = False",
        killed_by="tests/wire/test_watchdog.py::test_progress_in_the_moment_of_the_deadline_keeps_the_fence_down",
        invariant="the batch took longer than its process timeout",
    ),
    Mutant(
        name="the next membership begins beside the one before",
        file="kafka/memberships.py",
        old=_LEAVE_OLD,
        new="            pass\n",
        killed_by=f"{_MEMBERSHIPS}the_next_membership_begins_when_the_one_before_has_left",
        invariant="leave comes before join",
    ),
    Mutant(
        name="a close releases whatever the fence says",
        file="kafka/memberships.py",
        old="release=release if fenced is None else fenced.releases",
        new="release=release",
        killed_by=f"{_MEMBERSHIPS}a_fence_decides_whether_the_partitions_are_released",
        invariant="the fence decides",
    ),
    # The catch-up lane
    Mutant(
        name="the catch-up lane records a batch of a recreated topic",
        file="kafka/catch_up.py",
        old="        self._proof.check_identity(batch.ranges)\n",
        new="        self._watchdog.check()\n",
        killed_by=f"{_CATCH_UP}a_batch_of_a_recreated_topic_is_not_recorded",
        invariant="DID NOT RAISE TopicRecreatedError",
    ),
    Mutant(
        name="the catch-up lane ends without a last look",
        file="kafka/catch_up.py",
        old="            if self._proof.holds((*self.quarantined, *self.bad)):\n",
        new="            if not ranges:\n",
        killed_by=f"{_CATCH_UP}rows_that_the_table_lost_after_the_commit_end_the_run",
        invariant="DID NOT RAISE RowsMissingError",
    ),
    Mutant(
        name="the last look does not ask the table",
        file="kafka/proof.py",
        old="facts, without = self.look(), by_partition(left_out)",
        new="facts, without = self.known(), by_partition(left_out)",
        killed_by=f"{_CATCH_UP}rows_that_the_table_lost_after_the_commit_end_the_run",
        invariant="DID NOT RAISE RowsMissingError",
    ),
    Mutant(
        name="the offset at the log start counts as lost",
        file="kafka/catch_up.py",
        old="left = {tp: difference(spans, (Span(0, facts[tp].log_start),))",
        new="left = {tp: difference(spans, (Span(0, facts[tp].log_start + 1),))",
        killed_by=f"{_CATCH_UP}exactly_what_lies_below_the_log_start_is_lost",
        invariant="OffsetRange(topic='orders', partition=3, start=101, end=120)",
    ),
    Mutant(
        name="a batch counts as done before it is recorded",
        file="kafka/catch_up.py",
        old=_RECORD + _WROTE,
        new=_WROTE + _RECORD,
        killed_by=f"{_CATCH_UP}what_was_not_recorded_is_still_to_be_done",
        invariant="a range that was not recorded is outstanding",
    ),
    Mutant(
        name="the catch-up lane commits a batch of before its process timeout",
        file="kafka/catch_up.py",
        old="        self.check_open(batch)\n",
        new="        self._watchdog.check()\n",
        killed_by=f"{_CATCH_UP}a_batch_that_outlasted_its_process_timeout_is_not_committed",
        invariant="DID NOT RAISE FencedError",
    ),
    # The live lane
    Mutant(
        name="the live lane plans without a look at its place in the log",
        file="kafka/live.py",
        old="            check_log(tp, o.position, *bounds[tp])\n",
        new="            pass\n",
        killed_by=f"{_LIVE}a_position_behind_the_log_end_ends_the_run",
        invariant="DID NOT RAISE TopicRecreatedError",
    ),
    Mutant(
        name="the live lane passes what expired without writing it down",
        file="kafka/live.py",
        old="        self._second().tell(lost)\n",
        new="        self._second()\n",
        killed_by=f"{_LIVE}exactly_what_expired_is_passed_and_reported",
        invariant="'told as lost'",
    ),
    Mutant(
        name="the live lane passes one offset more than expired",
        file="kafka/live.py",
        old="owned[tp].committed = owned[tp].position = starts[tp]",
        new="owned[tp].committed = owned[tp].position = starts[tp] + 1",
        killed_by=f"{_LIVE}exactly_what_expired_is_passed_and_reported",
        invariant="OffsetRange(topic='orders', partition=3, start=101, end=120)",
    ),
    Mutant(
        name="the live lane passes what an open batch may have written",
        file="kafka/live.py",
        old="if o.committed == o.position < bounds[tp][0]",
        new="if o.position < bounds[tp][0]",
        killed_by=f"{_LIVE}a_partition_with_an_open_batch_is_not_passed",
        invariant="DID NOT RAISE DataExpiredError",
    ),
    Mutant(
        name="the first log is written before the second",
        file="kafka/live.py",
        old=_PUT + _ADOPT,
        new=_ADOPT + _PUT,
        killed_by=f"{_LIVE}the_second_log_is_written_before_the_first",
        invariant="the second log comes first",
    ),
    Mutant(
        name="the live lane plans a topic that was recreated",
        file="kafka/live.py",
        old="if was and now and was != now:",
        new="if was and not now:",
        killed_by=f"{_LIVE}a_recreated_topic_is_known_before_anything_is_planned_of_it",
        invariant="DID NOT RAISE TopicRecreatedError",
    ),
    # The records, the place and the wait of a run
    Mutant(
        name="two batches are read at once",
        file="kafka/records.py",
        old="            if turn != self._turn:\n",
        new="            if turn > self._turn:\n",
        killed_by="tests/wire/test_records.py::test_records_of_a_batch_end_when_those_of_another_are_asked_for",
        invariant="StopIteration",
    ),
    Mutant(
        name="a place is taken where partitions must be dealt again",
        file="kafka/places.py",
        old="fits = not dealt or dealt == set(partitions)",
        new="fits = not dealt or dealt <= set(partitions)",
        killed_by="tests/wire/test_places.py::test_a_place_is_no_remedy_where_partitions_must_be_dealt_again",
        invariant="'0000beef' == '0badcafe'",
    ),
    Mutant(
        name="a run that is no member yet counts as idle",
        file="lanes/waiting.py",
        old="        if not self._consumer.joined:\n            return True\n",
        new="",
        killed_by="tests/wire/test_waiting.py::test_a_run_that_the_group_has_not_let_in_waits",
        invariant="a run that is no member yet is not idle",
    ),
    Mutant(
        name="a run waits for partitions that never come",
        file="lanes/waiting.py",
        old="if why and waited > self._patience_seconds:",
        new="if why and waited < 0:",
        killed_by="tests/wire/test_waiting.py"
        "::test_a_partition_that_does_not_come_is_waited_for_as_long_as_the_others_may_keep_it",
        invariant="the wait has an end",
    ),
    # The steps of a batch
    Mutant(
        name="what the fence canceled fails the run",
        file="lanes/pipeline.py",
        old="            lane.check_open(one.batch)  # what",
        new="            pass  # what",
        killed_by=f"{_PIPELINE}a_batch_that_the_fence_has_canceled_is_retried",
        invariant="RuntimeError: Spark canceled the batch",
    ),
    Mutant(
        name="a batch is committed before it is written",
        file="lanes/pipeline.py",
        old="        one = in_flight[0]\n        try:\n            landed",
        new="        one = in_flight[0]\n        lane.commit(one.batch)\n        try:\n            landed",
        killed_by=f"{_PIPELINE}a_batch_is_committed_after_it_was_written",
        invariant="the write comes before the commit",
    ),
    Mutant(
        name="dead letters of a partition that was handed over are reported",
        file="lanes/dead_letters.py",
        old="if part.topic_partition not in handed_over:",
        new="if part.topic_partition:",
        killed_by=f"{_PIPELINE}dead_letters_of_a_partition_that_was_handed_over_are_not_reported",
        invariant="OffsetRange(topic='orders', partition=1, start=7, end=8)",
    ),
    Mutant(
        name="what a fenced membership has in flight stays",
        file="lanes/in_flight.py",
        old="if epoch is None or one.batch.epoch <= epoch]",
        new="if epoch is None or one.batch.epoch < epoch]",
        killed_by="tests/test_in_flight.py::test_what_a_former_membership_planned_is_given_up",
        invariant="[False, False] == [True, False]",
    ),
    # The partitions of a catch-up run
    Mutant(
        name="a replay is processed only where it is owed",
        file="lanes/lanes.py",
        old="if key in done or is_replay(key)]",
        new="if key in done]",
        killed_by=f"{_LANES}materialized_partitions_and_replays_are_processed_again",
        invariant="these are processed again",
    ),
    Mutant(
        name="the sensor's request processes what another run has done",
        file="lanes/lanes.py",
        old="done = set() if by_sensor else",
        new="done = set() if not by_sensor else",
        killed_by=f"{_LANES}materialized_partitions_and_replays_are_processed_again",
        invariant="these are processed again",
    ),
    Mutant(
        name="keys of the live asset count as done crash lag",
        file="lanes/lanes.py",
        old="context.instance.get_materialized_partitions(asset.crash_lag_key)",
        new="context.instance.get_materialized_partitions(asset.key)",
        killed_by=f"{_LANES}materialized_partitions_and_replays_are_processed_again",
        invariant="these are processed again",
    ),
    Mutant(
        name="an offset of a replay is reported on another partition",
        file="lanes/lanes.py",
        old="next((key for key in asked if range_of(key).overlaps(left_out)), key_of(left_out))",
        new="key_of(left_out)",
        killed_by=f"{_LANES}an_offset_that_was_passed_is_reported_on_the_partition_of_the_run",
        invariant="reported on the partition that the run was asked for",
    ),
    # The table's ledger
    Mutant(
        name="a sum of what was rolled back is believed",
        file="core/ledger.py",
        old=f"if one.since is not None and ({_SINCE}):",
        new="if one.since is not None:",
        killed_by="tests/core/test_ledger.py"
        "::test_a_sum_of_what_was_rolled_back_is_not_believed_where_the_history_is_expired_either",
        invariant="[(0, 30)], False)",
    ),
    Mutant(
        name="a sum is dated to the snapshot of the write",
        file="spark/ledger.py",
        old="        since = self._reading.snapshot_id\n",
        new="        since = snapshot_id\n",
        killed_by=f"{_LEDGER}a_sum_hides_nothing_that_was_written_since_it_was_read",
        invariant="the ledger hides a commit",
    ),
    Mutant(
        name="a table that was rolled back is written to as if it had not been",
        file="spark/ledger.py",
        old="        return snapshot_id in self._seen or (snapshot_id is None and bool(self._seen))\n",
        new="        return snapshot_id is None and bool(self._seen)\n",
        killed_by=f"{_LEDGER}rows_that_a_rollback_removed_are_not_told_on[2]",
        invariant="DID NOT RAISE RowsMissingError",
    ),
    Mutant(
        name="a commit that was rolled back at once is not missed",
        file="spark/ledger.py",
        old="            return self._landed_since\n",
        new="            return False\n",
        killed_by=f"{_LEDGER}rows_that_a_rollback_removed_are_not_told_on[1]",
        invariant="DID NOT RAISE RowsMissingError",
    ),
)
