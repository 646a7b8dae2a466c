"""Mutants of the data plane and of the sensor."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LINE = "tests/client/test_spark_connection.py::"
_SESSIONS = "tests/client/test_spark_sessions.py::"
_WRITES = "tests/client/test_spark_writes.py::"
_JOBS = "tests/client/test_spark_jobs.py::"
_LETTERS = "tests/client/test_dead_letters.py::"
_TABLE_LOOKS = "tests/client/test_table_ledger_reader.py::"
_TRANSFORMS = "tests/client/test_transforms.py::"
_UPKEEP = "tests/client/test_table_maintenance.py::"
_CHECKS = "tests/test_check_results.py::"
_GROUP_LOOKS = "tests/test_group_observation.py::"

_SENSOR = (
    Mutant(
        name="the sensor does not read the catch-up commit log",
        file="sensor/observation.py",
        old="= cluster.commits(group_id + CATCH_UP_SUFFIX, owing) if owing else {}",
        new="= {}",
        killed_by=f"{_GROUP_LOOKS}test_offsets_that_the_second_commit_log_has_as_done_are_not_pending",
        invariant="assert ['p3:orders:70-100'] == ['p3:orders:80-90']",
    ),
    Mutant(
        name="the sensor reads the live commit log twice",
        file="sensor/observation.py",
        old="= cluster.commits(group_id + CATCH_UP_SUFFIX, owing) if owing else {}",
        new="= cluster.commits(group_id, owing) if owing else {}",
        killed_by=f"{_GROUP_LOOKS}test_offsets_that_the_second_commit_log_has_as_done_are_not_pending",
        invariant="without a catch-up commit log all of it is pending",
    ),
    Mutant(
        name="lag on paused partitions requests a live run",
        file="core/orphaned_runs.py",
        old="any(seen.lag for seen in partitions if not seen.paused)",
        new="any(seen.lag for seen in partitions)",
        killed_by=f"{_GROUP_LOOKS}test_no_live_run_is_requested_for_lag_on_paused_partitions",
        invariant="assert ([RunRequest(",
    ),
    Mutant(
        name="crash lag of a paused partition requests a run",
        file="sensor/run_requests.py",
        old="pending = observed.still_pending(missing(), paused=False)",
        new="pending = observed.still_pending(missing())",
        killed_by=f"{_GROUP_LOOKS}test_crash_lag_of_a_paused_partition_is_not_caught_up",
        invariant="assert ['p3:orders:70-100'] == []",
    ),
    Mutant(
        name="the runs in progress are not queried again before a live run is requested",
        file="sensor/run_requests.py",
        old='self._count_in_progress(instance, "live", orphaned, read_in_progress)',
        new="in_progress",
        killed_by=(
            f"{_GROUP_LOOKS}test_a_live_run_that_started_after_the_observation_leaves_no_room_for_another"
        ),
        invariant="job_name='orders_job'",
    ),
    Mutant(
        name="the runs in progress are not queried before a catch-up run is requested",
        file="sensor/run_requests.py",
        old='or self._count_in_progress(instance, "catch-up", orphaned, read_in_progress)',
        new="or False",
        killed_by=f"{_GROUP_LOOKS}test_one_partition_is_caught_up_at_a_time",
        invariant="assert ['p3:orders:70-90'] == []",
    ),
    Mutant(
        name="the wrong lane is queried before a catch-up run is requested",
        file="sensor/run_requests.py",
        old='or self._count_in_progress(instance, "catch-up", orphaned, read_in_progress)',
        new='or self._count_in_progress(instance, "live", orphaned, read_in_progress)',
        killed_by=f"{_GROUP_LOOKS}test_one_partition_is_caught_up_at_a_time",
        invariant="assert ['p3:orders:70-90'] == []",
    ),
    Mutant(
        name="a departure gets its reason from the runs as they were before the members",
        file="sensor/observation.py",
        old="    for run in instance.get_runs(dg.RunsFilter(run_ids=list(away))) if away else []:",
        new="    for run in [one.dagster_run for one in records if one.dagster_run.run_id in away]:",
        killed_by=f"{_GROUP_LOOKS}test_the_reason_of_a_departure_is_read_after_the_members",
        invariant="LeaveReason.UNRESPONSIVE",
    ),
    Mutant(
        name="a run that is deleted during the observation counts as killed",
        file="sensor/observation.py",
        old="known[mark] = replace(known[mark], process=ProcessStatus.UNKNOWN)\n    return",
        new="pass\n    return",
        killed_by="tests/test_run_heartbeat.py::test_dagster_is_asked_again_after_the_process",
        invariant="ProcessStatus.GONE",
    ),
    Mutant(
        name="members that are older runs count as another instance's",
        file="sensor/observation.py",
        old="        known |= {run.run_id for run in instance.get_runs(dg.RunsFilter(run_ids=wanted))}",
        new="        pass",
        killed_by=(
            f"{_GROUP_LOOKS}test_a_run_that_dagster_lists_no_longer_among_the_newest_is_of_this_instance"
        ),
        invariant="assert [True] == [False]",
    ),
    Mutant(
        name="a run that ended after the observation is reported as failed",
        file="sensor/dead_runs.py",
        old="run = instance.get_run_by_id(known.run_id) if known is not None else None",
        new="run = known",
        killed_by=f"{_GROUP_LOOKS}test_a_run_that_ended_after_the_observation_is_not_reported_as_failed",
        invariant="AssertionError: an ended run was reported as failed",
    ),
    Mutant(
        name="the commit logs are not read again after the partitions",
        file="sensor/sensor.py",
        old="            self._observed = self._read_group(must_read_ledger=tells)\n",
        new="",
        killed_by=f"{_GROUP_LOOKS}test_a_range_that_is_caught_up_during_a_tick_does_not_become_a_partition",
        invariant="Left contains one more item: 'p3:orders:70-100@2'",
    ),
    Mutant(
        name="a check result is stored without a query of the table",
        file="sensor/sensor.py",
        old="            observed if was_read else self._read_group(),",
        new="            observed,",
        killed_by=f"{_GROUP_LOOKS}test_a_stored_check_result_says_whether_rows_are_missing",
        invariant="assert [True] == [False]",
    ),
)

_CONNECTION = (
    Mutant(
        name="giving up the connection does nothing",
        file="spark/connect/connection.py",
        old="        if self._abort_message is not None:\n            return\n        silent",
        new="        if self.is_aborted or message:\n            return\n        silent",
        killed_by=f"{_LINE}test_a_call_that_waits_ends_when_the_connection_is_given_up",
        invariant="the query still waits for Spark",
    ),
    Mutant(
        name="giving up the connection leaves its channel open",
        file="spark/connect/connection.py",
        old="            self._channel.close()",
        new="            pass",
        killed_by=f"{_LINE}test_a_call_that_waits_ends_when_the_connection_is_given_up",
        invariant="the query still waits for Spark",
    ),
    Mutant(
        name="the channel is closed while a stream is being opened",
        file="spark/connect/connection.py",
        old=(
            "            with self._open_lock:\n                self._is_closed = True\n"
            "                close_channel()"
        ),
        new="            self._is_closed = True\n            close_channel()",
        killed_by=f"{_LINE}test_no_stream_is_opened_on_a_closed_channel",
        invariant="assert ['closed', 'opened'] == ['opened', 'closed']",
    ),
    Mutant(
        name="the time limit of a block goes on behind it",
        file="spark/connect/connection.py",
        old="            ended.set()",
        new="            pass",
        killed_by=f"{_LINE}test_a_block_that_ends_in_time_leaves_the_connection_as_it_is",
        invariant="AssertionError: the connection was given up after the block",
    ),
    Mutant(
        name="a session on a silent server ends without giving up its connection",
        file="spark/connect/session.py",
        old='        connection_of(session).abort("a session was being closed")\n',
        new="",
        killed_by=f"{_LINE}test_a_session_ends_in_seconds_on_a_server_that_is_silent",
        invariant="AssertionError: the connection is still open",
    ),
    Mutant(
        name="a session shows secrets in plans",
        file="spark/connect/session.py",
        old="        _hide_secrets(session)\n",
        new="",
        killed_by=f"{_SESSIONS}test_a_session_hides_secrets_in_plans",
        invariant="assert 's3cr3t' not in",
    ),
    Mutant(
        name="a session replaces the server's redaction",
        file="spark/connect/session.py",
        old='f"{theirs}|{_SECRETS_IN_PLANS}" if theirs else _SECRETS_IN_PLANS',
        new="_SECRETS_IN_PLANS",
        killed_by=f"{_SESSIONS}test_a_session_adds_to_the_redaction_of_the_server",
        invariant="'card 4711'",
    ),
)

_WRITE = (
    Mutant(
        name="Spark reads over a gap",
        file="spark/source.py",
        old='"failOnDataLoss": "true"',
        new='"failOnDataLoss": "false"',
        killed_by=f"{_WRITES}test_spark_fails_where_records_of_the_range_are_gone",
        invariant="assert 'false' == 'true'",
    ),
    Mutant(
        name="the user's options come after those of the batch",
        file="spark/source.py",
        old="**theirs, **ours})",
        new="**ours, **theirs})",
        killed_by=f"{_WRITES}test_settings_of_the_user_change_neither_the_range_nor_what_happens_at_a_gap",
        invariant="'latest'",
    ),
    Mutant(
        name="aborted transactions are read",
        file="spark/source.py",
        old="theirs = {**DEFAULTS, **(",
        new="theirs = {**(",
        killed_by=f"{_WRITES}test_aborted_transactions_are_not_read",
        invariant="kafka.isolation.level is not in the plan",
    ),
    Mutant(
        name="rows outside of the batch pass",
        file="spark/row_guard.py",
        old="    return frame.where(\n",
        new="    return frame or frame.where(\n",
        killed_by=f"{_WRITES}test_a_row_outside_of_the_batch_fails_the_write",
        invariant="CASE WHEN (`topic` = 'orders'",
    ),
    Mutant(
        name="rows outside of the batch pass in a new table",
        file="spark/table/write.py",
        old="with_sums(require_rows_in_ranges(frame, of.ranges))",
        new="with_sums(frame)",
        killed_by=f"{_WRITES}test_a_row_outside_of_the_batch_fails_the_write_of_a_new_table",
        invariant="CASE WHEN (`topic` = 'orders'",
    ),
    Mutant(
        name="the snapshot of the validation is taken after the batch was read",
        file="spark/table/write.py",
        old="        frame = of.make_frame()\n",
        new="        frame = of.make_frame()\n"
        "        snapshot_id = None if shape is None else table.snapshot_id(session)\n",
        killed_by=f"{_WRITES}test_a_write_is_validated_from_the_snapshot_before_the_batch_was_read",
        invariant="assert '8' == '7'",
    ),
    Mutant(
        name="a write is not validated from its snapshot",
        file="spark/table/commits.py",
        old="    if snapshot_id is not None:  #",
        new="    if snapshot_id is None:  #",
        killed_by=f"{_WRITES}test_a_write_is_validated_from_the_snapshot_before_the_batch_was_read",
        invariant="validate-from-snapshot-id is not in the plan",
    ),
    Mutant(
        name="a write is not serializable",
        file="spark/table/schema.py",
        old=(
            "    return {\n"
            '        "isolation-level": "serializable",\n'
            '        "distribution-mode": "none",\n'
            '        "fanout-enabled": fan_out,\n'
            "        **properties,\n"
            "    }"
        ),
        new='    return {"distribution-mode": "none", "fanout-enabled": fan_out, **properties}',
        killed_by=f"{_WRITES}test_a_write_is_serializable",
        invariant="isolation-level is not in the plan",
    ),
    Mutant(
        name="rows without topic, partition and offset pass",
        file="spark/table/write.py",
        old='        require_row_columns(frame, f"the rows for {table.name}")\n',
        new="",
        killed_by=f"{_WRITES}test_rows_without_the_offset_are_refused",
        invariant="DID NOT RAISE TableSchemaError",
    ),
    Mutant(
        name="a fence between the transform and the write is not noticed",
        file="spark/table/write.py",
        old="        def execute() -> int:\n            of.may_go_on()\n",
        new="        def execute() -> int:\n",
        killed_by=f"{_WRITES}test_a_process_that_is_fenced_after_the_transform_writes_nothing",
        invariant="DID NOT RAISE FencedError",
    ),
    Mutant(
        name="a successor is looked for before the snapshot is known",
        file="spark/table/write.py",
        old="        of.may_go_on()\n        shape = table.writable_shape(session)\n",
        new=(
            "        of.may_go_on()\n        of.may_replace()\n        shape = "
            "table.writable_shape(session)\n"
        ),
        killed_by=f"{_WRITES}test_a_successor_is_noticed_after_the_snapshot_is_known",
        invariant="At index 0 diff: 'permission' != 'snapshot'",
    ),
    Mutant(
        name="a canceled write counts as a failure of the transform",
        file="spark/table/write.py",
        old="            self.may_go_on()  # a cancel or a fence is the cause, and raises here\n",
        new="",
        killed_by=f"{_WRITES}test_a_canceled_process_reports_the_cancel_and_not_the_error_of_its_write",
        invariant="SparkFailedError: Batch ",
    ),
    Mutant(
        name="the catalog's cache is not refreshed after a refusal",
        file="spark/table/write.py",
        old="                    self.table.refresh(self.session)\n",
        new="",
        killed_by=f"{_WRITES}test_a_refused_batch_is_written_again_from_a_newer_snapshot",
        invariant="assert ['7', '8'] == ['7', 'refresh', '8']",
    ),
    Mutant(
        name="a commit without a reply is written again though it landed",
        file="spark/table/write.py",
        old="            rows = self._attempt.rows_if_committed()\n",
        new="            rows = None\n",
        killed_by=f"{_WRITES}test_a_commit_without_a_reply_is_not_written_again_if_it_landed",
        invariant="did not respond whether it took the commit",
    ),
    Mutant(
        name="the last commit without a reply counts as a conflict",
        file="spark/table/write.py",
        old="is_last=attempt == self.max_attempts",
        new="is_last=attempt > self.max_attempts",
        killed_by=f"{_WRITES}test_a_last_commit_without_a_reply_is_the_storage_s_error",
        invariant="WriteConflictError: p0:orders:7-12 of lake.shop.orders was refused 2 times",
    ),
    Mutant(
        name="the ledger does not hear of a committed batch",
        file="spark/table/write.py",
        old="                self._attempt.ledger_record.mark_committed()",
        new="                pass",
        killed_by=f"{_WRITES}test_the_ledger_hears_of_a_batch_when_it_is_committed",
        invariant="assert [] == [OffsetRange(",
    ),
    Mutant(
        name="a file ends at its last offset",
        file="spark/table/table.py",
        old="OffsetRange(topic, partition, first, end=last + 1)",
        new="OffsetRange(topic, partition, first, end=last)",
        killed_by=f"{_WRITES}test_a_file_ends_behind_its_last_offset",
        invariant="end=8",
    ),
    Mutant(
        name="files that overlap a replaced file are cut",
        file="spark/ranges.py",
        old="        spans = grown",
        new="        return grown",
        killed_by=f"{_WRITES}test_a_batch_that_cuts_through_files_replaces_them_whole",
        invariant="assert '`offset` >= 5 AND `offset` < 31)' in",
    ),
    Mutant(
        name="merges of one session go on at the same time",
        file="spark/table/commits.py",
        old="        lock = _session_locks.setdefault(session, threading.Lock())",
        new="        lock = threading.Lock()",
        killed_by=f"{_WRITES}test_merges_of_one_session_take_turns",
        invariant="AssertionError: another MERGE changed the summary",
    ),
    Mutant(
        name="a merge that waited for another one does not check the fence",
        file="spark/table/commits.py",
        old="            self.may_go_on()\n",
        new="",
        killed_by=f"{_WRITES}test_a_merge_that_waited_for_another_one_checks_whether_it_may_write",
        invariant="AssertionError: the second MERGE was sent",
    ),
    Mutant(
        name="the namespace of a table that could not be created stays",
        file="spark/table/schema.py",
        old=(
            "    except PySparkException:\n        _drop_namespaces(session, made)\n        raise\n\n\ndef "
            "check"
        ),
        new="    except PySparkException:\n        raise\n\n\ndef check",
        killed_by=f"{_WRITES}test_a_namespace_that_a_write_created_goes_with_its_table",
        invariant="AssertionError: the namespace stays",
    ),
    Mutant(
        name="a sink is given rows outside of the batch",
        file="spark/sink.py",
        old="rows = require_rows_in_ranges(frame, self.ranges)",
        new="rows = frame",
        killed_by=f"{_WRITES}test_a_sink_is_given_rows_of_the_batch_alone",
        invariant="CASE WHEN (`topic` = 'orders'",
    ),
    Mutant(
        name="a sink's error does not name the row outside of the batch",
        file="spark/sink.py",
        old="            if row := row_outside_ranges(error):",
        new="            if (row := row_outside_ranges(error)) and not row:",
        killed_by=f"{_WRITES}test_a_row_outside_of_the_batch_is_named_by_a_sink_too",
        invariant="exceptions.connect.SparkRuntimeException: kafka-liveness: outside of the batch",
    ),
)

_TABLE_OF_A_TICK = (
    Mutant(
        name="a tick waits for the table without a time limit",
        file="spark/table/ledger.py",
        old=(
            "            with connection_of(session).abort_after(\n"
            '                self._answer_seconds, f"it was queried for the ledger of {self.target}"\n'
            "            ):"
        ),
        new="            if True:",
        killed_by=f"{_TABLE_LOOKS}test_a_tick_does_not_wait_for_a_table_that_sends_no_reply",
        invariant="the tick waits for Spark",
    ),
    Mutant(
        name="a tick waits for the table as long as a run does",
        file="sensor/table_ledger.py",
        old="IcebergTable(self.target), self._session, QUERY_TIMEOUT_SECONDS, last=last)",
        new="IcebergTable(self.target), self._session, last=last)",
        killed_by=f"{_TABLE_LOOKS}test_a_tick_does_not_wait_for_a_table_that_sends_no_reply",
        invariant="the tick waits for Spark",
    ),
    Mutant(
        name="a tick waits for dead letters without a time limit",
        file="sensor/table_ledger.py",
        old=(
            "        with connection_of(session).abort_after(\n"
            '            QUERY_TIMEOUT_SECONDS, f"waiting for the dead letters of {self.target}"\n'
            "        ):"
        ),
        new="        if True:",
        killed_by=f"{_TABLE_LOOKS}test_a_tick_does_not_wait_for_dead_letters",
        invariant="the tick waits for Spark",
    ),
    Mutant(
        name="a tick tries a silent server again at once",
        file="sensor/table_ledger.py",
        old="                _retry_at[remote] = (until, self.connect_seconds, str(error))\n",
        new="",
        killed_by=f"{_TABLE_LOOKS}test_a_tick_does_not_wait_for_a_server_that_sends_no_reply",
        invariant="AssertionError: the silent server was tried again",
    ),
    Mutant(
        name="the next tick uses the session that failed",
        file="sensor/table_ledger.py",
        old="if remote not in _sessions or connection_of(_sessions[remote]).is_aborted:",
        new="if remote not in _sessions:",
        killed_by=f"{_TABLE_LOOKS}test_a_session_that_failed_is_replaced_by_the_next_tick",
        invariant="'NoneType' object is not subscriptable",
    ),
    Mutant(
        name="each tick reads the table's whole history",
        file="sensor/table_ledger.py",
        old="        _snapshots[self.target] = ledger.snapshot\n",
        new="",
        killed_by=f"{_TABLE_LOOKS}test_the_history_is_read_once_while_the_table_does_not_change",
        invariant="AssertionError: the history was read again",
    ),
)

_JOB = (
    Mutant(
        name="a canceled job waits for its reply without end",
        file="spark/connect/job.py",
        old="            start_daemon_thread(self._abort_if_stuck, self.tag)\n",
        new="",
        killed_by=f"{_JOBS}test_a_canceled_job_that_gets_no_reply_gives_up_its_connection",
        invariant="the job still waits for Spark",
    ),
    Mutant(
        name="a cancel interrupts nothing",
        file="spark/connect/job.py",
        old="            self._session.interruptTag(self.tag)",
        new="            pass",
        killed_by=f"{_JOBS}test_a_cancel_interrupts_the_operations_of_the_job_alone",
        invariant="AssertionError: no interrupt was sent",
    ),
    Mutant(
        name="a canceled job whose operation ended looks like success",
        file="spark/connect/job.py",
        old="        if kind is None or isinstance(error, PySparkException):\n            self.check()\n",
        new="",
        killed_by=f"{_JOBS}test_a_canceled_job_never_looks_like_success",
        invariant="DID NOT RAISE SparkCancelledError",
    ),
    Mutant(
        name="progress of another batch counts",
        file="spark/connect/job.py",
        old="        if threading.get_ident() != self._thread:",
        new="        if self._thread is None:",
        killed_by=f"{_JOBS}test_progress_of_another_thread_is_not_that_of_the_job",
        invariant="AssertionError: progress of another thread was reported",
    ),
    Mutant(
        name="a restarted server counts as a failure of the work",
        file="spark/error_classification.py",
        old='        why = "the server restarted, or it ended this session"\n',
        new="        return None\n",
        killed_by=f"{_JOBS}test_a_server_that_was_restarted_is_unreachable_and_no_failure_of_the_work",
        invariant="pyspark.errors.exceptions.connect.",
    ),
    Mutant(
        name="a commit that was never sent counts as one without a reply",
        file="spark/error_classification.py",
        old='    return sent and not found[-1][0].endswith("ConnectException")',
        new="    return sent",
        killed_by="tests/test_spark_errors.py::test_what_iceberg_refuses_can_be_tried_again",
        invariant=") == None",
    ),
)

_TRANSFORM = (
    Mutant(
        name="a transform that returns None passes",
        file="spark/transform.py",
        old="        if not isinstance(rows, DataFrame):\n",
        new=(
            "        if rows is None:\n            return batch\n        if not isinstance(rows, "
            "DataFrame):\n"
        ),
        killed_by=f"{_TRANSFORMS}test_something_other_than_rows_is_refused",
        invariant="DID NOT RAISE TransformError",
    ),
    Mutant(
        name="an order to the run is taken for an error of the transform",
        file="spark/transform.py",
        old="(KafkaLivenessError, PlanTooLargeError, *self.passthrough_errors)",
        new="KafkaLivenessError",
        killed_by=f"{_TRANSFORMS}test_an_order_to_the_run_passes_as_it_is",
        invariant="TransformError: raising.<locals>.orders raised StopError",
    ),
    Mutant(
        name="an order to the run is swallowed",
        file="spark/transform.py",
        old="PlanTooLargeError, *self.passthrough_errors)):\n                raise\n",
        new="PlanTooLargeError, *self.passthrough_errors)):\n                return batch\n",
        killed_by=f"{_TRANSFORMS}test_an_order_to_the_run_passes_as_it_is",
        invariant="DID NOT RAISE StopError",
    ),
    Mutant(
        name="rows of another session pass",
        file="spark/transform.py",
        old="        if rows.sparkSession is not self.session:",
        new="        if rows.sparkSession is None:",
        killed_by=f"{_TRANSFORMS}test_rows_of_another_session_are_refused",
        invariant="DID NOT RAISE TransformError",
    ),
    Mutant(
        name="an unknown column is not found before the write",
        file="spark/transform.py",
        old=(
            "            # Spark reports an unknown column or table only now;"
            " PySpark caches the schema for later calls\n"
            "            _ = rows.schema"
        ),
        new=(
            "            _ = rows  # Spark reports an unknown column or table only now;"
            " PySpark caches the schema for later calls"
        ),
        killed_by=f"{_TRANSFORMS}test_a_plan_that_spark_refuses_is_the_transform_s_error_at_once",
        invariant="DID NOT RAISE TransformError",
    ),
    Mutant(
        name="a missing Kafka source is the transform's error",
        file="spark/transform.py",
        old="            _ = batch.schema\n",
        new="            pass\n",
        killed_by=f"{_TRANSFORMS}test_a_server_without_the_kafka_source_is_not_the_transform_s_error",
        invariant="TransformError: ",
    ),
    Mutant(
        name="a record that Spark cannot read becomes a dead letter",
        file="spark/transform.py",
        old="            if unreadable := rows.unreadable_record(error):",
        new="            if (unreadable := None):",
        killed_by=f"{_TRANSFORMS}test_a_record_that_spark_cannot_read_is_not_the_transform_s_failure",
        invariant="DID NOT RAISE UnreadableRecordError",
    ),
    Mutant(
        name="a cancel becomes the failure of a record",
        file="spark/transform.py",
        old=(
            "            if is_server_error(error):\n                raise\n            if unreadable := rows"
        ),
        new="            if unreadable := rows",
        killed_by=f"{_TRANSFORMS}test_a_canceled_search_does_not_blame_a_record",
        invariant="DID NOT RAISE Exception",
    ),
)

_LETTER = (
    Mutant(
        name="the room of the commit is checked after the letters are written",
        file="lanes/dead_letters.py",
        old=(
            "            lane.require_room(batch)\n"
            '            may = {"may_go_on": write.may_go_on, "may_replace": write.may_replace}\n'
            "            letters.replace(ranges, why, self.run, frame.options, **may)\n"
        ),
        new=(
            '            may = {"may_go_on": write.may_go_on, "may_replace": write.may_replace}\n'
            "            letters.replace(ranges, why, self.run, frame.options, **may)\n"
            "            lane.require_room(batch)\n"
        ),
        killed_by=f"{_LETTERS}test_letters_are_written_before_the_rows_and_the_room_is_checked_before_both",
        invariant="At index 0 diff: ('letters',)",
    ),
    Mutant(
        name="the letters are not written",
        file="lanes/dead_letters.py",
        old="            letters.replace(ranges, why, self.run, frame.options, **may)\n",
        new="",
        killed_by=f"{_LETTERS}test_letters_are_written_before_the_rows_and_the_room_is_checked_before_both",
        invariant="At index 1 diff: ('rows',)",
    ),
    Mutant(
        name="the whole batch is written though some of its records are left out",
        file="lanes/dead_letters.py",
        old="rest = replace(write, ranges=batch.processed, make_frame",
        new="rest = replace(write, make_frame",
        killed_by=f"{_LETTERS}test_the_rows_of_the_other_offsets_are_written",
        invariant="AssertionError: the bad record was written, too",
    ),
    Mutant(
        name="one bad record fewer than allowed ends the run",
        file="lanes/dead_letters.py",
        old="            if len(why) > most:",
        new="            if len(why) >= most:",
        killed_by=f"{_LETTERS}test_as_many_bad_records_as_allowed_become_letters",
        invariant="BadRecordError: offset 9 of orders:0",
    ),
    Mutant(
        name="letters of an earlier attempt count against the limit",
        file="lanes/dead_letters.py",
        old="most = self.max_dead_letters + letters.count(ranges)",
        new="most = self.max_dead_letters",
        killed_by=f"{_LETTERS}test_letters_of_an_earlier_attempt_do_not_count_again",
        invariant="More than max_dead_letters=1 of p0:orders:7-15",
    ),
    Mutant(
        name="a storage error is looked for in the records",
        file="lanes/dead_letters.py",
        old="        if isinstance(failed, (KafkaSourceError, StorageError)):\n",
        new="        if failed is None:\n",
        killed_by=f"{_LETTERS}test_a_storage_error_blames_no_record",
        invariant="DID NOT RAISE StorageError",
    ),
    Mutant(
        name="a transform that always fails blames the records",
        file="lanes/dead_letters.py",
        old="    except (TransformError, SparkFailedError):\n        return {}\n",
        new="    except (TransformError, SparkFailedError):\n        pass\n",
        killed_by=f"{_LETTERS}test_a_transform_that_fails_without_records_blames_no_record",
        invariant="More than max_dead_letters=3 of p0:orders:7-15",
    ),
    Mutant(
        name="offsets of partitions that were handed over are reported as left out",
        file="lanes/dead_letters.py",
        old="            if part.topic_partition not in handed_over:",
        new="            if part:",
        killed_by=f"{_LETTERS}test_only_partitions_that_this_process_still_owns_are_reported_as_left_out",
        invariant="AssertionError: offsets of another member were reported",
    ),
    Mutant(
        name="a table of another kind is taken for dead letters",
        file="spark/table/dead_letters.py",
        old="            self._exists()\n        rows",
        new="            pass\n        rows",
        killed_by=f"{_LETTERS}test_letters_are_not_kept_in_a_table_of_another_kind",
        invariant="DID NOT RAISE TableSchemaError",
    ),
    Mutant(
        name="the letter at the end of a range counts as pending",
        file="spark/table/dead_letters.py",
        old='(letters["offset"] < pending["end"])',
        new='(letters["offset"] <= pending["end"])',
        killed_by=f"{_LETTERS}test_a_letter_is_pending_while_its_offset_is_in_a_pending_range",
        invariant="AssertionError: the end of a range is part of it",
    ),
    Mutant(
        name="letters of processed offsets stay",
        file="spark/table/dead_letters.py",
        old="        if ranges and self.count(ranges):",
        new="        if ranges and not self.count(ranges):",
        killed_by=f"{_LETTERS}test_letters_of_processed_offsets_are_removed",
        invariant="AssertionError: the letters stay",
    ),
)

_REST = (
    Mutant(
        name="snapshots that hold the ledger expire",
        file="spark/table/maintenance.py",
        old="(*found.path, *found.totals)",
        new="found.totals",
        killed_by=f"{_UPKEEP}test_the_snapshots_that_hold_the_ledger_are_kept",
        invariant="timestamp_millis(432000000L)",
    ),
    Mutant(
        name="files of writes that go on are deleted as orphans",
        file="spark/table/maintenance.py",
        old="before = _timestamp_literal(now - min_age)",
        new="before = _timestamp_literal(now)",
        killed_by=f"{_UPKEEP}test_files_of_writes_that_may_go_on_are_no_orphans",
        invariant="timestamp_millis(432000000L)",
    ),
    Mutant(
        name="a tick that has ended keeps its place",
        file="sensor/dead_runs.py",
        old="        _slots.release()",
        new="        pass",
        killed_by="tests/test_process_exit.py::test_only_two_ticks_wait_at_once",
        invariant="AssertionError: their places are free again",
    ),
    Mutant(
        name="the slots of a run in progress come free",
        file="sensor/dead_runs.py",
        old="        if is_over and now",
        new="        if now",
        killed_by=f"{_GROUP_LOOKS}test_slots_of_a_pool_come_free_when_their_run_is_over_for_a_while",
        invariant="AssertionError: assert {'0badcafe-11",
    ),
    Mutant(
        name="windows are marked complete without the table",
        file="sensor/windows.py",
        old="            if unavailable_reason or found.status",
        new="            if found.status",
        killed_by=(
            "tests/test_windows.py::test_no_window_is_marked_complete_while_the_table_cannot_be_queried"
        ),
        invariant="At index 0 diff: ['2026-10-24-00:00', '2026-10-24-01:00'] != []",
    ),
    Mutant(
        name="windows before the first record are marked complete",
        file="core/windows.py",
        old="    if not has_records(partitions, ends):\n        return JudgedWindow(WindowStatus.BEFORE)\n",
        new="",
        killed_by="tests/core/test_windows.py::test_a_window_before_the_first_record_is_not_judged",
        invariant="assert (<WindowStatus.COMPLETE: 'complete'> is <WindowStatus.BEFORE: 'before'>) == True",
    ),
    Mutant(
        name="windows do not wait for late records",
        file="sensor/windows.py",
        old="now - self.windows.allowed_lateness_seconds, _MAX_WINDOWS)",
        new="now, _MAX_WINDOWS)",
        killed_by="tests/test_windows.py::test_a_window_waits_for_records_that_may_come_late",
        invariant="At index 0 diff: ['2026-10-24-00:00', '2026-10-24-01:00'] != ['2026-10-24-00:00']",
    ),
    Mutant(
        name="a clock that was set back keeps the sensor from observing",
        file="sensor/cursor.py",
        old='                "observed_at": 0.0,\n',
        new="",
        killed_by="tests/test_sensors.py::test_a_clock_that_was_set_back_delays_nothing",
        invariant="assert (2000.0, 1000.0, 7) == (0.0, 1000.0, 7)",
    ),
    Mutant(
        name="two events of a kind in one tick request one run",
        file="sensor/run_requests.py",
        old="            met[name] += 1\n",
        new="",
        killed_by="tests/test_sensors.py::test_what_happens_again_is_asked_for_again",
        invariant="== 4",
    ),
    Mutant(
        name="a changed check result is stored ten minutes later",
        file="sensor/checks.py",
        old="must_repeat or outcomes != stored.outcomes or now",
        new="must_repeat or now",
        killed_by=f"{_CHECKS}test_a_changed_result_is_stored_at_once",
        invariant="assert 0 == 2",
    ),
    Mutant(
        name="a materialization of this second hides check results for good",
        file="sensor/checks.py",
        old="if one.timestamp < now - _TIMESTAMP_TOLERANCE_SECONDS),",
        new="if one.timestamp <= now),",
        killed_by=f"{_CHECKS}test_a_materialization_of_this_second_hides_results_at_the_next_tick",
        invariant="At index 0 diff: ",
    ),
    Mutant(
        name="live runs that fail in a row are requested at once",
        file="core/orphaned_runs.py",
        old="    if failures_in_a_row < _FAILURES_BEFORE_BACKOFF:",
        new="    if failures_in_a_row <= _FAILURES_BEFORE_BACKOFF:",
        killed_by=f"{_GROUP_LOOKS}test_live_runs_that_fail_in_a_row_are_requested_at_longer_intervals",
        invariant="assert [True, True] == [False, True]",
    ),
    Mutant(
        name="a partition that fails is caught up again before the others",
        file="sensor/run_requests.py",
        old="oldest = min(pending, key=lambda key: failed[key])",
        new="oldest = pending[0]",
        killed_by=f"{_GROUP_LOOKS}test_a_partition_that_fails_does_not_keep_the_others_from_being_caught_up",
        invariant="assert ['p3:orders:70-90'] == ['p3:orders:90-100']",
    ),
)

_SHARED_SENSOR_TESTS = "tests/integration/test_shared_sensor.py::"
_SHARED_SENSOR = (
    Mutant(
        name="a shared sensor does not notice new records of an idle group",
        file="sensor/shared.py",
        old="reads.groups[group_id].fingerprint != last.kafka",
        new="not reads.groups",
        killed_by=f"{_SHARED_SENSOR_TESTS}test_a_group_without_a_change_is_not_read",
        invariant="assert [] == ['asset_1_job']",
    ),
    Mutant(
        name="a shared sensor does not notice runs of an idle group",
        file="sensor/shared.py",
        old="and one.last.runs == runs.fingerprint(group_id)",
        new="and one.last.runs",
        killed_by=f"{_SHARED_SENSOR_TESTS}test_a_group_without_a_change_is_not_read",
        invariant="assert 'etl-",
    ),
    Mutant(
        name="a shared sensor trusts its memory with any cursor",
        file="sensor/shared.py",
        old="self._memory if context.cursor == self._memory.cursor else _Memory()",
        new="self._memory",
        killed_by=f"{_SHARED_SENSOR_TESTS}test_a_cursor_that_was_not_stored_is_not_trusted",
        invariant="Error",
    ),
    Mutant(
        name="idle groups of a shared sensor are read only when they change",
        file="core/idle_groups.py",
        old="math.ceil(share * len(oldest))",
        new="0",
        killed_by="tests/core/test_idle_groups.py::test_a_group_that_was_just_observed_is_left_out",
        invariant="assert [] == ['orders']",
    ),
    Mutant(
        name="groups that fail come first at the next tick of a shared sensor",
        file="sensor/shared.py",
        old="return self.failed_at.get(group_id, 0.0) if known is None",
        new="return 0.0 if known is None",
        killed_by=f"{_SHARED_SENSOR_TESTS}test_a_group_that_fails_does_not_come_first_again",
        invariant="assert [] == ['asset_1_job']",
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *_SENSOR,
    *_SHARED_SENSOR,
    *_CONNECTION,
    *_WRITE,
    *_TABLE_OF_A_TICK,
    *_JOB,
    *_TRANSFORM,
    *_LETTER,
    *_REST,
)
