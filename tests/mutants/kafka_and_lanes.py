"""Mutants of the control plane and of the lanes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_COMMITS = "tests/client/test_member_commits.py::test_"
_SECOND = "tests/client/test_catch_up_commit_log.py::test_"
_FENCE = "tests/client/test_fence.py::test_"
_CATCH_UP = "tests/client/test_catch_up.py::test_"
_LIVE = "tests/client/test_live_planner.py::test_"
_MEMBERSHIPS = "tests/client/test_group_session.py::test_"
_PIPELINE = "tests/test_pipeline.py::test_"
_LANES = "tests/test_lane_runs.py::test_"
_LEDGER = "tests/test_table_ledger.py::test_"
_PLAIN = "tests/client/test_offset_commits.py::test_"
_PROCESSED = "tests/client/test_processed_ranges.py::test_"
_CLUSTER = "tests/client/test_cluster.py::test_"
_CONSUMER = "tests/client/test_consumer.py::test_"
_WINDOWS = "tests/test_window_runs.py::test_"
_WATCHDOG = "tests/client/test_watchdog.py::test_"
_SINCE = "places.get(one.total_as_of, -1) > place or one.total_as_of not in snapshots"
_LEAVE_OLD = "            before.leave(why)  # who raised the fence may not have come to it yet\n"
_PAUSE = "        if partitions:\n            client.pause(partitions)\n"
_RECORD = "        self._catch_up_log.mark_done(batch.processed, self._watchdog.check)\n"
_WROTE = "        self._completion.mark_written(batch.processed)\n"
_PUT = """\
        self._catch_up_log().write(
            {tp: (states[tp].catch_up_log, self._catch_up_log_of(r)) for tp, r in resumed.items()}
        )
        self._warn_about_external_commits(states)
"""
_ADOPT = """\
        self.member.commit_start_positions(
            {
                tp: OwnedPartition(
                    r.position,
                    r.position,
                    r.pending,
                    assignment_id=arrived[tp],
                    is_paused=r.paused,
                    reprocess=r.reprocess,
                    origin=r.origin if self._ledger else None,
                )
                for tp, r in resumed.items()
            }
        )
"""

MUTANTS: tuple[Mutant, ...] = (
    # Commits of a member
    Mutant(
        name="a commit keeps partitions that were handed over",
        file="kafka/live/assignment.py",
        old="return {tp: one for tp, one in owned.items() if self.owned.get(tp) is one}",
        new="return dict(owned)",
        killed_by=f"{_COMMITS}a_commit_after_a_rebalance_leaves_out_partitions_that_were_handed_over",
        invariant="only owned partitions may be committed",
    ),
    Mutant(
        name="a commit may leave a gap",
        file="kafka/live/assignment.py",
        old="if done[tp].start != one.committed:",
        new="if done[tp].start < one.committed:",
        killed_by=f"{_COMMITS}a_span_that_does_not_follow_on_the_commit_is_refused",
        invariant="DID NOT RAISE CommitRefusedError",
    ),
    Mutant(
        name="planning goes on after a refused commit",
        file="kafka/live/assignment.py",
        old="one.position = one.committed",
        new="pass",
        killed_by=f"{_COMMITS}after_a_refused_commit_planning_goes_back_to_the_commit",
        invariant="planning goes back to the commit",
    ),
    Mutant(
        name="offsets that a commit leaves out are lost",
        file="kafka/live/member.py",
        old="owing = {tp: owned.with_pending(skipped(tp)) for tp, owned in mine.items()}",
        new="owing = dict(mine)",
        killed_by=f"{_COMMITS}offsets_that_a_commit_leaves_out_are_crash_lag_from_that_commit_on",
        invariant="pending=(Span(start=75, end=76),)",
    ),
    Mutant(
        name="marks of a release are given up in a rebalance",
        file="kafka/live/member.py",
        old="if not is_rebalance_in_progress(error) or time.monotonic() >= give_up_at:",
        new="if is_rebalance_in_progress(error) or time.monotonic() >= give_up_at:",
        killed_by=f"{_COMMITS}marks_of_a_release_are_repeated_while_a_rebalance_holds_them_up",
        invariant="released partitions are marked",
    ),
    Mutant(
        name="an error of a single partition in a commit is swallowed",
        file="kafka/committer.py",
        old="            if errors:\n                return errors[0]\n",
        new="            if errors:\n                continue\n",
        killed_by=f"{_COMMITS}an_error_of_a_single_partition_refuses_the_commit",
        invariant="DID NOT RAISE KafkaRefusedError",
    ),
    Mutant(
        name="assigned partitions are fetched",
        file="kafka/live/assignment.py",
        old=_PAUSE,
        new=_PAUSE.replace("client.pause(partitions)", "pass"),
        killed_by=f"{_COMMITS}a_member_does_not_fetch_its_partitions",
        invariant="assigned partitions are paused",
    ),
    # The catch-up commit log
    Mutant(
        name="an expired catch-up commit log is not renewed",
        file="kafka/catch_up/commit_log.py",
        old="self._commit({tp: self._last_written[tp] for tp in partitions if tp in self._last_written})",
        new="self._commit({tp: now[tp] for tp in partitions if tp in now})",
        killed_by=f"{_SECOND}an_expired_log_is_renewed_as_it_was_read_last",
        invariant="an expired log is renewed",
    ),
    Mutant(
        name="a record is not read back",
        file="kafka/catch_up/commit_log.py",
        old=(
            "                {tp: replace(log, origin=log.origin or states[tp].origin)"
            " for tp, log in logs.items()}\n"
            "            )"
        ),
        new=(
            "                {tp: replace(log, origin=log.origin or states[tp].origin)"
            " for tp, log in logs.items()}\n"
            "            )\n"
            "            return"
        ),
        killed_by=f"{_SECOND}a_record_is_read_back_and_repeated_until_it_lasts",
        invariant="the record has to last",
    ),
    Mutant(
        name="the catch-up commit log is committed to the live group",
        file="kafka/catch_up/commit_log.py",
        old="config = kafka.committer_config(group_id + CATCH_UP_SUFFIX, ",
        new="config = kafka.committer_config(group_id, ",
        killed_by=f"{_SECOND}the_catch_up_log_is_a_group_of_its_own",
        invariant="['orders-etl'] == ['orders-etl.catch-up']",
    ),
    # The fence
    Mutant(
        name="a batch is open while the fence is up",
        file="kafka/watchdog.py",
        old="return self._watchdog.reason is None and self._is_current(batch)",
        new="return self._is_current(batch)",
        killed_by=f"{_FENCE}no_batch_is_open_while_the_fence_is_up",
        invariant="a batch is closed while the fence is up",
    ),
    Mutant(
        name="a batch of a former membership passes",
        file="kafka/watchdog.py",
        old="        if not self._is_current(batch):\n",
        new="        if not self._has_started:\n",
        killed_by=f"{_FENCE}a_batch_of_a_former_membership_stays_closed",
        invariant="DID NOT RAISE FencedError",
    ),
    Mutant(
        name="a commit does not look at the batch's epoch",
        file="kafka/live/session.py",
        old=(
            "        self.fence.check_batch(batch)\n        with self._fence_on_refusal() as lane:\n"
            "            lane.check_topics"
        ),
        new=(
            "        self.fence.check()\n        with self._fence_on_refusal() as lane:\n"
            "            lane.check_topics"
        ),
        killed_by=f"{_MEMBERSHIPS}a_batch_is_not_committed_after_the_membership_that_planned_it",
        invariant="DID NOT RAISE FencedError",
    ),
    Mutant(
        name="a deadline that was met raises the fence",
        file="kafka/watchdog.py",
        old="outdated = reason is FenceReason.POLL_TIMEOUT and not self._timer.has_expired(now_ms())",
        new="outdated = False",
        killed_by=(
            "tests/client/test_watchdog.py::test_progress_in_the_moment_of_the_deadline_keeps_the_fence_down"
        ),
        invariant="the batch took longer than its process timeout",
    ),
    Mutant(
        name="the next membership begins beside the one before",
        file="kafka/live/session.py",
        old=_LEAVE_OLD,
        new="            pass\n",
        killed_by=f"{_MEMBERSHIPS}the_next_membership_begins_when_the_one_before_has_left",
        invariant="leave comes before join",
    ),
    Mutant(
        name="a close releases partitions of an ended run",
        file="kafka/live/session.py",
        old="release=release if fenced is None else fenced.releases_partitions",
        new="release=release",
        killed_by=f"{_MEMBERSHIPS}a_fence_decides_whether_the_partitions_are_released",
        invariant="the fence decides",
    ),
    # The catch-up lane
    Mutant(
        name="the catch-up lane records a batch of a recreated topic",
        file="kafka/catch_up/consumer.py",
        old="        self._completion.check_identity(batch.ranges)\n",
        new="        self._watchdog.check()\n",
        killed_by=f"{_CATCH_UP}a_batch_of_a_recreated_topic_is_not_recorded",
        invariant="DID NOT RAISE TopicRecreatedError",
    ),
    Mutant(
        name="the catch-up lane ends without a last check",
        file="kafka/catch_up/consumer.py",
        old="            if self._completion.verify((*self.quarantined, *self.bad_offsets)):\n",
        new="            if not ranges:\n",
        killed_by=f"{_CATCH_UP}rows_that_the_table_lost_after_the_commit_end_the_run",
        invariant="DID NOT RAISE RowsMissingError",
    ),
    Mutant(
        name="the last check does not query the table",
        file="kafka/catch_up/completion.py",
        old="        states = self.read_all()\n        without = spans_by_partition(left_out)\n",
        new="        states = self.read_commits()\n        without = spans_by_partition(left_out)\n",
        killed_by=f"{_CATCH_UP}rows_that_the_table_lost_after_the_commit_end_the_run",
        invariant="DID NOT RAISE RowsMissingError",
    ),
    Mutant(
        name="the offset at the log start counts as lost",
        file="kafka/catch_up/consumer.py",
        old="left = {tp: difference(spans, (Span(0, states[tp].log_start),))",
        new="left = {tp: difference(spans, (Span(0, states[tp].log_start + 1),))",
        killed_by=f"{_CATCH_UP}exactly_the_offsets_below_the_log_start_are_lost",
        invariant="OffsetRange(topic='orders', partition=3, start=101, end=120)",
    ),
    Mutant(
        name="a batch counts as done before it is recorded",
        file="kafka/catch_up/consumer.py",
        old=_RECORD + _WROTE,
        new=_WROTE + _RECORD,
        killed_by=f"{_CATCH_UP}a_batch_that_was_not_recorded_is_outstanding",
        invariant="a range that was not recorded is outstanding",
    ),
    Mutant(
        name="the catch-up lane commits a batch of before its process timeout",
        file="kafka/catch_up/consumer.py",
        old="        self.check_batch(batch)\n",
        new="        self._watchdog.check()\n",
        killed_by=f"{_CATCH_UP}a_batch_that_outlasted_its_process_timeout_is_not_committed",
        invariant="DID NOT RAISE FencedError",
    ),
    # The live lane
    Mutant(
        name="the live lane plans without a check of the log bounds",
        file="kafka/live/planner.py",
        old="            check_offset_in_log(tp, o.position, *bounds[tp])\n",
        new="            pass\n",
        killed_by=f"{_LIVE}a_position_behind_the_log_end_ends_the_run",
        invariant="DID NOT RAISE TopicRecreatedError",
    ),
    Mutant(
        name="the live lane does not record expired offsets as lost",
        file="kafka/live/planner.py",
        old="        self._catch_up_log().write_off(lost)\n",
        new="        self._catch_up_log()\n",
        killed_by=f"{_LIVE}exactly_the_expired_offsets_are_passed_and_reported",
        invariant="'reported as lost'",
    ),
    Mutant(
        name="the live lane passes one offset that has not expired",
        file="kafka/live/planner.py",
        old="owned[tp].committed = owned[tp].position = starts[tp]",
        new="owned[tp].committed = owned[tp].position = starts[tp] + 1",
        killed_by=f"{_LIVE}exactly_the_expired_offsets_are_passed_and_reported",
        invariant="OffsetRange(topic='orders', partition=3, start=101, end=120)",
    ),
    Mutant(
        name="the live lane passes offsets of an open batch",
        file="kafka/live/planner.py",
        old="if o.committed == o.position < bounds[tp][0]",
        new="if o.position < bounds[tp][0]",
        killed_by=f"{_LIVE}a_partition_with_an_open_batch_is_not_passed",
        invariant="DID NOT RAISE DataExpiredError",
    ),
    Mutant(
        name="the live commit log is written before the catch-up commit log",
        file="kafka/live/planner.py",
        old=_PUT + _ADOPT,
        new=_ADOPT + _PUT,
        killed_by=f"{_LIVE}the_catch_up_log_is_written_before_the_live_one",
        invariant="the catch-up commit log comes first",
    ),
    Mutant(
        name="the live lane plans a topic that was recreated",
        file="kafka/live/planner.py",
        old="if was and now and was != now:",
        new="if was and not now:",
        killed_by=f"{_LIVE}a_recreated_topic_is_known_before_anything_is_planned_of_it",
        invariant="DID NOT RAISE TopicRecreatedError",
    ),
    # The records, the place and the wait of a run
    Mutant(
        name="two batches are read at once",
        file="kafka/record_reader.py",
        old="            if turn != self._iteration:\n",
        new="            if turn > self._iteration:\n",
        killed_by=(
            "tests/client/test_record_reader.py::test_records_of_a_batch_end_when_those_of_another_are_asked_for"
        ),
        invariant="StopIteration",
    ),
    Mutant(
        name="a group.instance.id is taken over although the topic has grown",
        file="kafka/live/session.py",
        old="fits = not dealt or dealt == set(partitions)",
        new="fits = not dealt or dealt <= set(partitions)",
        killed_by="tests/client/test_group_instance_id.py::test_a_place_is_no_remedy_where_partitions_must_be_dealt_again",
        invariant="'0000beef' == '0badcafe'",
    ),
    Mutant(
        name="a run that is no member yet counts as idle",
        file="lanes/assignment_wait.py",
        old="        if not self._consumer.is_joined:\n            return True\n",
        new="",
        killed_by="tests/client/test_assignment_pending.py::test_a_run_that_the_group_has_not_let_in_waits",
        invariant="a run that is no member yet is not idle",
    ),
    Mutant(
        name="a run waits for partitions that never come",
        file="lanes/assignment_wait.py",
        old="if why and waited > self._max_wait_seconds:",
        new="if why and waited < 0:",
        killed_by=(
            "tests/client/test_assignment_pending.py::test_a_run_waits_for_a_partition_as_long_as_other_members_may_hold_it"
        ),
        invariant="the wait has an end",
    ),
    # The steps of a batch
    Mutant(
        name="a batch that the fence canceled fails the run",
        file="lanes/pipeline.py",
        old=(
            "            # What was cancelled by the fence failed because of it, though we may be back\n"
            "            lane.check_batch(one.batch)"
        ),
        new="            pass  # what was cancelled by the fence failed because of it, though we may be back",
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
        name="batches of a fenced membership stay in flight",
        file="lanes/in_flight.py",
        old="if epoch is None or one.batch.membership_epoch <= epoch]",
        new="if epoch is None or one.batch.membership_epoch < epoch]",
        killed_by="tests/test_in_flight.py::test_what_a_former_membership_planned_is_given_up",
        invariant="[False, False] == [True, False]",
    ),
    # The partitions of a catch-up run
    Mutant(
        name="a replay is not processed",
        file="lanes/runs.py",
        old="if key in done or is_replay(key)]",
        new="if key in done]",
        killed_by=f"{_LANES}materialized_partitions_and_replays_are_replayed",
        invariant="these are replayed",
    ),
    Mutant(
        name="the sensor's request replays materialized partitions",
        file="lanes/runs.py",
        old="        if by_sensor",
        new="        if not by_sensor",
        killed_by=f"{_LANES}materialized_partitions_and_replays_are_replayed",
        invariant="these are replayed",
    ),
    Mutant(
        name="keys of the live asset count as done crash lag",
        file="lanes/runs.py",
        old="context.instance.get_materialized_partitions, asset.crash_lag_key",
        new="context.instance.get_materialized_partitions, asset.key",
        killed_by=f"{_LANES}materialized_partitions_and_replays_are_replayed",
        invariant="these are replayed",
    ),
    Mutant(
        name="an offset of a replay is reported on another partition",
        file="lanes/runs.py",
        old="next((key for key in asked if parse_key(key).overlaps(left_out)), partition_key(left_out))",
        new="partition_key(left_out)",
        killed_by=f"{_LANES}an_offset_that_was_passed_is_reported_on_the_partition_of_the_run",
        invariant="reported on a partition of the run",
    ),
    # The table's ledger
    Mutant(
        name="an expired ledger is completed by pending offsets too",
        file="kafka/live/planner.py",
        old="(*r.catch_up_log.written_off, *r.pending)",
        new="r.catch_up_log.written_off",
        killed_by=f"{_LIVE}an_expired_ledger_is_completed_by_all_that_is_not_pending",
        invariant="pending offsets are not assumed",
    ),
    Mutant(
        name="an expired ledger stays incomplete while anything is pending",
        file="kafka/live/planner.py",
        old="not state.ledger_entry.is_complete:",
        new="not state.ledger_entry.is_complete and not r.pending:",
        killed_by=f"{_LIVE}an_expired_ledger_is_completed_by_all_that_is_not_pending",
        invariant="pending offsets are not assumed",
    ),
    Mutant(
        name="an expired ledger does not show what was rolled back",
        file="core/partition_state.py",
        old="difference((Span(self.origin.start, MAX_OFFSET),), self.ledger_entry.unknown)",
        new="(Span(self.origin.start, MAX_OFFSET),) if self.ledger_entry.is_complete else ()",
        killed_by="tests/core/test_partition_state.py::test_the_snapshot_of_a_partition_has_what_is_pending",
        invariant="pending or lost",
    ),
    Mutant(
        name="snapshots that are newer than the current one count as rolled back",
        file="spark/table/snapshots.py",
        old="    return table.current_snapshot_id(session) != snapshot_id\n",
        new="    return False\n",
        killed_by=f"{_LEDGER}a_table_that_grows_between_two_queries_was_not_rolled_back",
        invariant="a newer snapshot is no roll back",
    ),
    Mutant(
        name="ranges that were found missing are done in an expired ledger",
        file="core/partition_state.py",
        old="        missing = intersection(elsewhere, self.catch_up_log.missing)\n",
        new="        missing: tuple[Span, ...] = ()\n",
        killed_by="tests/core/test_partition_state.py::test_what_is_not_proven_done_is_left",
        invariant="is not proven done",
    ),
    Mutant(
        name="a snapshot that grew out of an unknown one counts as rolled back",
        file="core/ledger.py",
        old="root is not None and grew.get(root, False)",
        new="root is not None",
        killed_by="tests/core/test_ledger.py::test_an_expired_history_still_shows_what_was_rolled_back",
        invariant="only what grew out of the line",
    ),
    Mutant(
        name="a sum of a snapshot that was rolled back counts",
        file="core/ledger.py",
        old=f"if one.total_as_of is not None and (\n            {_SINCE}\n        ):",
        new="if one.total_as_of is not None:",
        killed_by=(
            "tests/core/test_ledger.py::test_a_sum_of_what_was_rolled_back_does_not_count_in_an_expired_history"
        ),
        invariant="[(0, 30)], False)",
    ),
    Mutant(
        name="a sum is dated to the snapshot of the write",
        file="spark/table/ledger.py",
        old="        since = self._snapshot.snapshot_id\n",
        new="        since = snapshot_id\n",
        killed_by=f"{_LEDGER}a_sum_hides_nothing_that_was_written_since_it_was_read",
        invariant="the ledger hides a commit",
    ),
    Mutant(
        name="a group does not look for another group after its first write",
        file="spark/table/ledger.py",
        old="        return self._commits <= 1 and bool(self._group_id) and ",
        new="        return False and ",
        killed_by=f"{_LEDGER}a_second_group_is_found_before_the_second_write",
        invariant="DID NOT RAISE GroupMismatchError",
    ),
    Mutant(
        name="a replay does not look for the snapshots of its writes",
        file="spark/table/ledger.py",
        old="        for began_with, replaced in committed:\n",
        new="        for began_with, replaced in ():\n",
        killed_by=f"{_LEDGER}a_rollback_of_rows_that_replaced_others_is_found[before it is seen]",
        invariant="DID NOT RAISE RowsMissingError",
    ),
    Mutant(
        name="a rollback behind a look of a replay is no loss",
        file="spark/table/ledger.py",
        old="        if was_rolled_back:\n            former",
        new="        if False:\n            former",
        killed_by=f"{_LEDGER}a_rollback_of_rows_that_replaced_others_is_found[after it is seen]",
        invariant="DID NOT RAISE RowsMissingError",
    ),
    Mutant(
        name="a table that was rolled back is written to as if it had not been",
        file="spark/table/ledger.py",
        old=(
            "        return snapshot_id in self._seen_snapshot_ids or (\n"
            "            snapshot_id is None and bool(self._seen_snapshot_ids)\n"
            "        )"
        ),
        new="        return snapshot_id is None and bool(self._seen_snapshot_ids)",
        killed_by=f"{_LEDGER}rows_that_a_rollback_removed_are_not_recorded[2]",
        invariant="DID NOT RAISE RowsMissingError",
    ),
    Mutant(
        name="a commit that was rolled back at once is not missed",
        file="spark/table/ledger.py",
        old="            return self._committed_since_read\n",
        new="            return False\n",
        killed_by=f"{_LEDGER}rows_that_a_rollback_removed_are_not_recorded[1]",
        invariant="DID NOT RAISE RowsMissingError",
    ),
    # A second pass over the same modules
    Mutant(
        name="the side effects of recovered rows are skipped in the live lane",
        file="kafka/live/planner.py",
        old="        self._recover(states, {tp: r.written_uncommitted for tp, r in resumed.items()})\n",
        new="",
        killed_by=f"{_LIVE}recovered_rows_are_not_committed_without_their_side_effects",
        invariant="DID NOT RAISE ZeroDivisionError",
    ),
    Mutant(
        name="the side effects of recovered rows are skipped in the catch-up lane",
        file="kafka/catch_up/consumer.py",
        old=(
            "        if self._recover_unrecorded(states):\n            states = "
            "self._completion.read_commits()\n"
        ),
        new="",
        killed_by=f"{_CATCH_UP}rows_of_a_dead_run_are_not_recorded_without_its_side_effects",
        invariant="DID NOT RAISE ZeroDivisionError",
    ),
    Mutant(
        name="a record that another run replaced is not written again",
        file="kafka/catch_up/consumer.py",
        old="                self._catch_up_log.mark_done(self._written, self._watchdog.check)",
        new="                pass",
        killed_by=f"{_CATCH_UP}a_record_that_another_run_replaced_is_written_again_before_the_run_ends",
        invariant="a run that ends green has recorded its ranges",
    ),
    Mutant(
        name="a paused partition whose rows are not recorded is done",
        file="kafka/catch_up/consumer.py",
        old="(left[tp] or tp in self._unrecovered)",
        new="left[tp]",
        killed_by=(
            f"{_CATCH_UP}a_paused_partition_whose_rows_are_all_there_is_not_done_before_they_are_recorded"
        ),
        invariant="DID NOT RAISE PausedPartitionError",
    ),
    Mutant(
        name="a catch-up commit log is rebuilt under a live member without the side effects",
        file="kafka/live/planner.py",
        old="            self._recover(states, {})\n",
        new="",
        killed_by=f"{_LIVE}rows_of_a_dead_catch_up_run_get_their_side_effects_before_a_rebuilt_log[live]",
        invariant="side effects come before the rebuilt log",
    ),
    Mutant(
        name="what was learned counts only once it is written",
        file="core/sink_ledger.py",
        old="entry + self._written_off(tp)",
        new="entry",
        killed_by=f"{_LEDGER}what_was_learned_counts_before_it_is_written",
        invariant="a learned report counts at once",
    ),
    Mutant(
        name="pending offsets whose rows are missing stay done",
        file="kafka/catch_up/commit_log.py",
        old="    log = state.catch_up_log.reopen(intersection(committed, state.pending_by_live_log))\n",
        new="    log = state.catch_up_log\n",
        killed_by=f"{_SECOND}rows_that_were_found_missing_are_recorded[0]",
        invariant="missing rows are not done",
    ),
    Mutant(
        name="a refused pause stays",
        file="kafka/live/planner.py",
        old="            owned.is_paused = before\n",
        new="            pass\n",
        killed_by=f"{_LIVE}a_refused_commit_neither_pauses_nor_resumes",
        invariant="a refused commit changes nothing",
    ),
    Mutant(
        name="a batch is confirmed without a check of its partitions",
        file="kafka/live/planner.py",
        old=" and self.member.owns(\n            batch.assignment_ids\n        )",
        new="",
        killed_by=f"{_LIVE}a_batch_is_confirmed_by_the_broker_after_its_partitions_went",
        invariant="DID NOT RAISE FencedError",
    ),
    Mutant(
        name="planning goes on after a failed confirmation",
        file="kafka/live/planner.py",
        old="            self.replan()\n",
        new="",
        killed_by=f"{_LIVE}a_batch_is_confirmed_by_the_broker_after_its_partitions_went",
        invariant="owned partitions are replanned",
    ),
    Mutant(
        name="a commit of another client drops crash lag",
        file="kafka/live/planner.py",
        old="        self.pending.update({tp: resumed.pending for tp, resumed in settled.items()})\n",
        new="        pass\n",
        killed_by=f"{_LIVE}crash_lag_outlasts_a_commit_of_another_client",
        invariant="crash lag lasts",
    ),
    Mutant(
        name="lost partitions stay owned",
        file="kafka/live/assignment.py",
        old="(FenceReason.PARTITIONS_LOST)\n        self._remove(client, partitions)\n",
        new="(FenceReason.PARTITIONS_LOST)\n",
        killed_by=f"{_COMMITS}partitions_that_were_lost_are_neither_owned_nor_marked",
        invariant="lost partitions are not owned",
    ),
    Mutant(
        name="lost partitions are released",
        file="kafka/live/assignment.py",
        old="        self._state.fence(FenceReason.PARTITIONS_LOST)\n",
        new=(
            "        self._release(_topic_partitions(partitions))\n"
            "        self._state.fence(FenceReason.PARTITIONS_LOST)\n"
        ),
        killed_by=f"{_COMMITS}partitions_that_were_lost_are_neither_owned_nor_marked",
        invariant="lost partitions are not marked",
    ),
    Mutant(
        name="an error in a callback keeps revoked partitions",
        file="kafka/live/assignment.py",
        old="        finally:\n            self._remove(client, partitions)\n",
        new=(
            "        finally:\n            self._was_called_back = True\n        self._remove(client, "
            "partitions)\n"
        ),
        killed_by=f"{_COMMITS}revoked_partitions_are_given_up_after_an_error_too",
        invariant="revoked partitions are not owned",
    ),
    Mutant(
        name="a member between two epochs gives up",
        file="kafka/errors.py",
        old="        KafkaError.STALE_MEMBER_EPOCH,\n        KafkaError._WAIT_COORD,",
        new="        KafkaError._WAIT_COORD,",
        killed_by=f"{_COMMITS}a_commit_after_a_rebalance_leaves_out_partitions_that_were_handed_over",
        invariant="KafkaRefusedError: Kafka refused while committing",
    ),
    Mutant(
        name="a new membership begins with the time of the one before",
        file="kafka/watchdog.py",
        old="            self._timer.poll(now_ms())\n            self._reason = None\n",
        new="            self._reason = None\n",
        killed_by=f"{_MEMBERSHIPS}a_new_membership_has_the_whole_process_timeout",
        invariant="a new membership begins with its own time",
    ),
    Mutant(
        name="a consumer that was closed joins",
        file="kafka/live/session.py",
        old="        if not why.may_rejoin:\n            self.watchdog.check()\n",
        new="",
        killed_by=f"{_MEMBERSHIPS}a_consumer_that_was_closed_before_its_first_poll_does_not_join",
        invariant="DID NOT RAISE FencedError",
    ),
    Mutant(
        name="a commit of a member that was put out counts",
        file="kafka/live/session.py",
        old="            raise\n        self._check_fence(lane)\n",
        new="            raise\n        pass\n",
        killed_by=f"{_MEMBERSHIPS}a_commit_of_a_member_that_the_group_put_out_meanwhile_is_refused",
        invariant="DID NOT RAISE FencedError",
    ),
    Mutant(
        name="an error of a leave hides the fence",
        file="kafka/watchdog.py",
        old="        except Exception:  # the session timeout",
        new="        except OSError:  # the session timeout",
        killed_by=f"{_WATCHDOG}a_member_that_cannot_leave_is_fenced_all_the_same",
        invariant="ZeroDivisionError",
    ),
    Mutant(
        name="a quarantined offset is planned a second time",
        file="kafka/catch_up/consumer.py",
        old="        self._mark_planned((*self.quarantined, *self.bad_offsets))\n",
        new="        self._mark_planned(self.bad_offsets)\n",
        killed_by=f"{_CATCH_UP}a_quarantined_offset_is_not_planned_a_second_time",
        invariant="a quarantined offset is left out",
    ),
    Mutant(
        name="crash lag of a paused partition counts as done",
        file="kafka/catch_up/consumer.py",
        old="[tp for tp in left if states[tp].is_paused and (left[tp] or tp in self._unrecovered)]",
        new="[]",
        killed_by=f"{_CATCH_UP}crash_lag_of_a_paused_partition_ends_the_run_with_an_error",
        invariant="DID NOT RAISE PausedPartitionError",
    ),
    Mutant(
        name="the catch-up lane writes after the fence",
        file="kafka/catch_up/consumer.py",
        old="        self._watchdog.check()\n\n    def commit",
        new="        pass\n\n    def commit",
        killed_by=f"{_CATCH_UP}a_batch_is_not_written_once_the_run_is_fenced",
        invariant="DID NOT RAISE FencedError",
    ),
    Mutant(
        name="a replay does not end",
        file="kafka/catch_up/consumer.py",
        old="(*self._written.get(tp, ()), *states[tp].written_off)",
        new="states[tp].written_off",
        killed_by=f"{_CATCH_UP}a_range_that_is_replayed_is_processed_once",
        invariant="a range is replayed once",
    ),
    Mutant(
        name="an open batch is planned twice",
        file="kafka/catch_up/consumer.py",
        old="        self._mark_planned(ranges)\n        deadline_seconds",
        new="        deadline_seconds",
        killed_by=f"{_CATCH_UP}a_batch_ahead_of_one_that_is_open_does_not_end_the_lane",
        invariant="assert Batch(",
    ),
    Mutant(
        name="a client whose broker fell silent is closed",
        file="kafka/catch_up/commit_log.py",
        old="if not self._committer.timed_out:",
        new="if self._committer is not None:",
        killed_by=f"{_SECOND}a_client_whose_broker_fell_silent_is_not_closed",
        invariant="assert True is not True",
    ),
    Mutant(
        name="the end of the planned offsets cannot be committed",
        file="kafka/live/session.py",
        old="not owned.committed <= offset <= owned.position",
        new="not owned.committed <= offset < owned.position",
        killed_by=f"{_PLAIN}an_offset_goes_to_the_log_whose_range_it_lies_in",
        invariant="commit of offset 150 of orders:3: this consumer does not hold it",
    ),
    Mutant(
        name="the end of a pending range records it as done",
        file="core/commit_metadata.py",
        old="if span.start < offset < span.end), None)",
        new="if span.start < offset <= span.end), None)",
        killed_by=f"{_PLAIN}the_end_of_a_pending_range_is_refused",
        invariant="DID NOT RAISE CommitRefusedError",
    ),
    Mutant(
        name="the live lane's own commit is looked for in the pending ranges",
        file="kafka/live/session.py",
        old="if tp not in held or offset != held[tp].committed}",
        new="if tp in held or offset}",
        killed_by=f"{_PLAIN}the_live_lanes_own_position_records_no_crash_lag_as_done",
        invariant="CommitRefusedError: offset 120 of orders:3 ends the pending range",
    ),
    Mutant(
        name="plain offsets of crash lag go to neither log",
        file="kafka/live/session.py",
        old="            self._catch_up_log().mark_done(caught_up, self._session.fence.check)\n",
        new="            self._catch_up_log()\n",
        killed_by=f"{_PLAIN}an_offset_goes_to_the_log_whose_range_it_lies_in",
        invariant="OffsetRange(topic='orders', partition=3, start=70, end=90)",
    ),
    Mutant(
        name="a commit does not move the rotation",
        file="kafka/live/consumer.py",
        old="        self._rotation.committed = done.rotation_start\n",
        new="        pass\n",
        killed_by="tests/client/test_consumer.py::test_"
        "the_turn_goes_on_behind_the_partition_of_the_last_commit",
        invariant="assert None == ",
    ),
    Mutant(
        name="crash lag counts as processed",
        file="kafka/timestamps.py",
        old="return difference(below, (*one.outstanding, *one.written_off))",
        new="return difference(below, one.written_off)",
        killed_by=f"{_PROCESSED}crash_lag_and_unread_offsets_are_not_processed",
        invariant="only processed offsets",
    ),
    Mutant(
        name="a commit at the first offset is none",
        file="kafka/admin.py",
        old="if tp.offset >= 0",
        new="if tp.offset > 0",
        killed_by=f"{_CLUSTER}a_commit_at_the_first_offset_is_a_commit",
        invariant="a commit at 0 counts",
    ),
    Mutant(
        name="an offset is passed without an end",
        file="kafka/live/consumer.py",
        old="        if poison in self._poison:\n",
        new="        if len(self._poison) > 2:\n",
        killed_by=f"{_CONSUMER}an_offset_that_the_live_lane_could_not_pass_ends_the_run",
        invariant="DID NOT RAISE SlowRecordError",
    ),
    Mutant(
        name="a batch that is judged alone has company",
        file="lanes/pipeline.py",
        old="most = 1 if sizer.retry_alone else self.max_in_flight",
        new="most = self.max_in_flight",
        killed_by=f"{_PIPELINE}a_batch_that_is_judged_alone_shares_spark_with_no_other",
        invariant="a batch is judged alone",
    ),
    Mutant(
        name="a run ends when a materialization falls due",
        file="lanes/runs.py",
        old="            if seconds < patience:\n                continue\n",
        new="",
        killed_by=f"{_LANES}a_run_is_idle_after_its_whole_idle_time",
        invariant="the idle time has passed",
    ),
    Mutant(
        name="Materialize all processes crash lag that is done",
        file="lanes/runs.py",
        old="    if materializes(context, asset.key):\n        if left",
        new="    if False:\n        if left",
        killed_by=f"{_LANES}who_materializes_the_live_asset_too_replays_no_materialized_partition",
        invariant="what is done is left alone",
    ),
    Mutant(
        name="a window is whole before all of it is read",
        file="lanes/runs.py",
        old="if found.pending or found.unread:",
        new="if found.pending:",
        killed_by=f"{_WINDOWS}a_window_with_missing_offsets_is_not_replayed",
        invariant="DID NOT RAISE IncompleteWindowError",
    ),
    Mutant(
        name="replayed records count as late",
        file="lanes/late_records.py",
        old="if not any(r.overlaps(other) for other in self._reprocessed)]",
        new="]",
        killed_by=f"{_WINDOWS}replayed_records_are_not_late",
        invariant="a replay is not late",
    ),
    Mutant(
        name="an interrupted materialization is dropped",
        file="lanes/materializations.py",
        old="left = [self._current] if self._pending is None else [self._pending.since, self._current]",
        new="left = [self._current]",
        killed_by="tests/test_materializations.py::test_who_is_interrupted_in_the_wait_tells_it_all_the_same",
        invariant="[7] == [10, 7]",
    ),
    Mutant(
        name="a member listens before it is quiet",
        file="kafka/live/data_listener.py",
        old="is_quiet = now - self._caught_up_since >= CAUGHT_UP_SECONDS",
        new="is_quiet = now - self._caught_up_since < CAUGHT_UP_SECONDS",
        killed_by=(
            "tests/client/test_data_listener.py::test_what_is_heard_is_looked_at_and_listened_to_again_after_a_while"
        ),
        invariant="== ({}, 0.2)",
    ),
)
