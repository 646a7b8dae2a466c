"""Run each lane, and reprocess time windows: from the consumer to the Dagster results.

A run of windows replaces rows and changes neither commit log. Never marks a window complete: the sensor does.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import dagster as dg

from kafka_liveness_dagster.core.bad_records import BadRecordError
from kafka_liveness_dagster.core.batch_size import SlowRecordError
from kafka_liveness_dagster.core.errors import InvalidSettingError, KafkaLivenessError
from kafka_liveness_dagster.core.names import format_count, join_some
from kafka_liveness_dagster.core.offsets import OffsetRange, difference
from kafka_liveness_dagster.core.partition_keys import is_replay, parse_key, partition_key
from kafka_liveness_dagster.core.partition_state import DataExpiredError
from kafka_liveness_dagster.failpoints import Failpoint, failpoint
from kafka_liveness_dagster.lanes.assignment_wait import AssignmentWait
from kafka_liveness_dagster.lanes.dead_letters import remove_processed
from kafka_liveness_dagster.lanes.hidden_values import hide_values
from kafka_liveness_dagster.lanes.materializations import Materializations, observe_table
from kafka_liveness_dagster.lanes.pipeline import Pipeline, table_info_reader, table_timeout_seconds
from kafka_liveness_dagster.lanes.row_check import check_rows
from kafka_liveness_dagster.metadata import (
    Tally,
    merge_ranges,
    range_metadata,
    range_table,
    row_count_text,
    window_metadata,
)
from kafka_liveness_dagster.runs.garbage_collection import freeze_definitions
from kafka_liveness_dagster.runs.heartbeat import RunHeartbeat
from kafka_liveness_dagster.runs.selection import has_dependents, materializes, require_partition
from kafka_liveness_dagster.runs.storage import call_with_retries, storage_of
from kafka_liveness_dagster.runs.tags import (
    BACKFILL_TAG,
    CAUSE_TAG,
    DATA_STATE_AT_END,
    DATA_STATE_AT_START,
    MAX_RETRIES,
    NO_RETRIES,
    SESSION_TAG,
    lane_tags,
)
from kafka_liveness_dagster.settings.consumers import CatchUpSettings, ConsumerSettings
from kafka_liveness_dagster.telemetry.metrics import DEAD_LETTERS, GROUP, REASON, TOPIC
from kafka_liveness_dagster.telemetry.otel import export_telemetry, record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer
    from kafka_liveness_dagster.lanes.protocols import BatchSource, OnSkipped, Transform
    from kafka_liveness_dagster.resources.spark import SparkConnectResource
    from kafka_liveness_dagster.runs.storage import RunStorage
    from kafka_liveness_dagster.settings.asset import KafkaAssetSettings
    from kafka_liveness_dagster.settings.windows import Window, Windows


UNTOUCHED = (
    "Left %s alone: %s already, and this run or its backfill materializes %s, too. To process a partition "
    "again, materialize its partition without that asset"
)
IDLE_LINE = (
    "This run ends, because no record arrived for %g s (idle_seconds). The sensor starts the next run when "
    "records arrive"
)
_MAX_NAMED = 5  # ranges in a command that an error shows; the next run shows the others


def run_live(
    asset: KafkaAssetSettings, context: dg.AssetExecutionContext, transform: Transform
) -> dg.MaterializeResult | None:  # type: ignore[type-arg]
    """Run the live lane until no new data comes, or the run's own budget is nearly used up.

    Return a materialization of the data that none has reported during the run; None without such data.
    """
    require_partition(context, asset.partitioned_keys)
    retries = {} if MAX_RETRIES in context.run.tags else NO_RETRIES
    with (
        hide_values(),
        RunHeartbeat(context, {**_begin(asset, context, "live"), **retries}),
        export_telemetry(),
    ):
        return _live(asset, context, transform)


def _begin(
    asset: KafkaAssetSettings, context: dg.AssetExecutionContext, lane: Literal["live", "catch-up"]
) -> dict[str, str]:
    """Begin to open the run's Spark session; return the tags by which the sensor finds the run.

    After a crash the sensor finds the session by its tag, too.
    """
    freeze_definitions()
    spark: SparkConnectResource = getattr(context.resources, asset.resources.spark)
    tags = {**lane_tags(asset.group_id, lane), SESSION_TAG: spark.next_session_id}
    spark.open_ahead()
    return tags


def _live(
    asset: KafkaAssetSettings, context: dg.AssetExecutionContext, transform: Transform
) -> dg.MaterializeResult | None:  # type: ignore[type-arg]
    pipeline = Pipeline.from_asset(asset, context, transform, lane="live")
    storage = storage_of(context)
    with pipeline.kafka.consumer(
        topics=asset.topics,
        group_id=asset.group_id,
        context=context,
        max_poll_records=asset.max_records,
        enable_parallel_rebalance=asset.enable_parallel_rebalance,
        batching=asset.batching.subset(ConsumerSettings.used_fields["batching"]),
        crash_lag=asset.crash_lag.subset(ConsumerSettings.used_fields["crash_lag"]),
        offsets=asset.offsets,
        membership=asset.membership,
        ledger=pipeline.ledger,
    ) as consumer:
        storage.log.info("%s", consumer.timeouts)
        known = Counter[str]()
        at_end = dict[str, int | float]()
        told = Materializations(
            storage,
            context.asset_key,
            asset.group_id,
            every_seconds=asset.materialize_interval_seconds,
            read_table_info=lambda: table_info_reader(
                asset, pipeline.spark, consumer.timeouts.budget.seconds
            ),
            extra_metadata=lambda: {
                **_materialization_facts(consumer, context, pipeline, known=known),
                **at_end,
            },
        )
        waiting = AssignmentWait(consumer, storage)
        next_batch = _batches_until_idle(
            consumer,
            asset.idle_seconds,
            asset.batching.commit_interval_seconds,
            wait=waiting,
            materializations=told,
        )
        try:
            pipeline.run(
                consumer, next_batch, storage.log, on_skipped=_report_skipped(asset, storage), counter=told
            )
            if told.has_unreported_batches:
                at_end.update(_lag(consumer))  # before the leave, while this run owns the partitions
            # All is committed, so leave first: an unresponsive broker or Spark in the next steps is no crash
            consumer.leave()
            check_rows(
                consumer, storage.log, table_timeout_seconds(consumer.timeouts.budget.seconds), told.batches
            )
            storage.log.info("%s committed in this run", format_count(told.batches, "batch"))
            if consumer.has_time_for_batch():
                storage.log.info(IDLE_LINE, asset.idle_seconds)
            committed = (
                f"{format_count(told.batches, 'batch')} of this run are in the table once and committed"
            )
            storage.flush(
                f"{committed}; Dagster lacks a materialization of {told.unreported_batches:,} of them"
            )
            last = told.final_result(force=_needs_final_result(consumer, context, told, known=known))
        except BaseException:
            told.emit_on_failure()
            raise
    failpoint(Failpoint.BEFORE_MATERIALIZATION)
    return last


def _needs_final_result(
    consumer: LivenessConsumer, context: dg.AssetExecutionContext, told: Materializations, known: Counter[str]
) -> bool:
    """Return whether the run ends with a materialization although no batch is new since the last one.

    Dagster skips the steps that depend on this one unless it has an output, and materializations during the
    run are no output. Recovered rows were written by a run that died before it could report them. A Dagster
    backfill (*Materialize all*) fails if one of its runs materializes nothing.
    """
    if len(consumer.recovered) > known["recovered"] or BACKFILL_TAG in context.run.tags:
        return True
    if not has_dependents(context):
        return False
    has_written = bool(told.batches or consumer.recovered)
    if not has_written:
        name = context.asset_key.to_user_string()
        storage_of(context).log.info("No batch was committed: steps that depend on %s are skipped", name)
    return has_written


def _materialization_facts(
    consumer: LivenessConsumer, context: dg.AssetExecutionContext, pipeline: Pipeline, known: Counter[str]
) -> dict[str, Any]:
    """Return further metadata for each materialization: the findings that are not ``known`` yet."""
    found = {
        "crash_lag_found": consumer.crash_lag,
        "recovered": consumer.recovered,
        "crash_lag_restored": consumer.forgotten_pending,
        "expired_unprocessed": consumer.lost,
    }
    new = {name: ranges[known[name] :] for name, ranges in found.items()}
    known.update({name: len(ranges) for name, ranges in new.items()})
    return {
        **_lag(consumer),
        **({"cause": cause} if (cause := context.run.tags.get(CAUSE_TAG)) else {}),
        "timeouts": str(consumer.timeouts),
        **pipeline.spark.links(),
        **{name: range_table(ranges) for name, ranges in new.items() if ranges},
    }


def run_catch_up(asset: KafkaAssetSettings, context: dg.AssetExecutionContext, transform: Transform) -> None:
    """Run the catch-up lane: process the pending ranges of the run's partitions, the oldest first."""
    require_partition(context, asset.partitioned_keys)
    with hide_values(), RunHeartbeat(context, _begin(asset, context, "catch-up")), export_telemetry():
        _catch_up(asset, context, transform)


def _catch_up(asset: KafkaAssetSettings, context: dg.AssetExecutionContext, transform: Transform) -> None:
    asked = _requested_ranges(
        call_with_retries(lambda: context.partition_keys, "the keys of the run", DATA_STATE_AT_START)
    )
    again = _ranges_to_reprocess(asset, context, asked)
    pipeline = Pipeline.from_asset(asset, context, transform, lane="catch-up", reprocess=again)
    done = run_catch_up_lane(
        asset, context, pipeline, ranges=list(asked.values()), reprocess=again, keys=list(asked)
    )
    for key, one in asked.items():
        numbers = done.tally.of_run(len(asked))
        told = range_metadata(
            asset.group_id,
            one,
            done.pending,
            lost=done.lost,
            of_run=numbers,
            is_reprocessed=one in again,
            written_off=_written_off(one, done),
        )
        storage_of(context).add_metadata(key, {**told, **pipeline.spark.links()}, DATA_STATE_AT_END)


def _requested_ranges(keys: Sequence[str]) -> dict[str, OffsetRange]:
    """Return the range of each partition of the run.

    Raises:
        InvalidSettingError: a person added a partition that names no range.
    """
    try:
        return {key: parse_key(key) for key in keys}
    except InvalidSettingError as error:
        error.append(
            "Nothing was processed; the sensor adds all partitions. Fix: delete this partition in the UI, in "
            "the menu next to Materialize: Delete partitions"
        )
        raise


class CatchUpResult(NamedTuple):
    """The result of a catch-up run that did all of its work.

    Attributes:
        pending: the ranges that were pending at its beginning.
        lost: the ranges that had expired.
        done: the ranges that this run or an earlier one processed.
        tally: the work of this run.
    """

    pending: Sequence[OffsetRange]
    lost: Sequence[OffsetRange]
    done: Sequence[OffsetRange]
    tally: Tally


def _written_off(requested: OffsetRange, result: CatchUpResult) -> list[OffsetRange]:
    """Return the parts of a range that were written off before the run: neither processed nor lost."""
    tp = requested.topic_partition
    known = [one.span for one in (*result.done, *result.lost) if one.topic_partition == tp]
    return [OffsetRange(*tp, *span) for span in difference((requested.span,), known)]


def run_catch_up_lane(
    asset: KafkaAssetSettings,
    context: dg.AssetExecutionContext,
    pipeline: Pipeline,
    ranges: Sequence[OffsetRange],
    *,
    reprocess: Sequence[OffsetRange],
    keys: Sequence[str] = (),
) -> CatchUpResult:
    """Process the pending offsets of these ranges, and all offsets of ``reprocess``.

    ``keys`` are their partitions.

    Raises:
        SlowRecordError: everything is done, except offsets that are too slow alone.
    """
    with pipeline.kafka.catch_up(
        group_id=asset.group_id,
        ranges=ranges,
        reprocess=reprocess,
        context=context,
        max_poll_records=asset.max_records,
        offsets=asset.offsets.subset(CatchUpSettings.used_fields["offsets"]),
        ledger=pipeline.ledger,
    ) as lane:
        pending = lane.outstanding_ranges()
        storage = storage_of(context)
        storage.log.info("The run budget of a batch is %s", lane.budget)
        storage.log.info(
            "%s requested; pending: %s", format_count(len(ranges), "range"), join_some(pending) or "nothing"
        )
        if reprocess:
            storage.log.info("Reprocessing, pending or not: %s", join_some(reprocess))
        tally = Tally()
        pipeline.run(
            lane, lane.poll, storage.log, on_skipped=_report_skipped(asset, storage, keys), counter=tally
        )
        left_out = lane.quarantined
        bad = lane.bad_offsets
        lost = lane.lost
        done = lane.done_ranges()
        state, remedy = _skipped_message(
            asset.group_id, [*left_out, *bad], lane.kept_former_rows(), keys=keys
        )
    if asset.table is not None:
        remove_processed(pipeline.spark, asset.table, done, budget_seconds=lane.budget.seconds)
    storage.log.info("Written in %s: %s", format_count(tally.batches, "batch"), row_count_text(tally.rows))
    if tally.batches:
        read_table = table_info_reader(asset, pipeline.spark, lane.budget.seconds)
        observe_table(storage, asset.key, asset.group_id, processed=tally, read_table_info=read_table)
    if left_out:
        raise SlowRecordError(left_out, lane.budget.seconds, f"{state}. Or {remedy}")
    if bad:
        fix = f"Fix: correct the transform, and materialize *Failed and missing*; or {remedy}"
        raise BadRecordError(bad, "", f"{state}. {fix}. The records are in {asset.table}_dead_letters")
    failpoint(Failpoint.BEFORE_MATERIALIZATION)
    return CatchUpResult(pending, lost, done, tally)


def _skipped_message(
    group_id: str, left_out: Sequence[OffsetRange], kept: Sequence[OffsetRange], keys: Sequence[str]
) -> tuple[str, str]:
    """Return the state of offsets that a catch-up run left out, and how a person closes their partitions.

    Args:
        group_id: the live lane's group.
        left_out: ranges of one offset each.
        kept: the ones that were processed before; the others are pending.
        keys: partitions of the crash lag asset; none for a run of complete windows.
    """
    pending = merge_ranges(one for one in left_out if one not in kept)
    state = "All other offsets of these partitions are done. "
    state += "The partitions stay failed until these offsets are done" if pending else ""
    if kept:
        state += "; the former rows" if pending else "The former rows"
        state += f" of {join_some(merge_ranges(kept))} are still in the table"
    if kept and not keys:
        return (
            state,
            "keep the former rows with *Report materialization events*, in the menu next to Materialize",
        )
    of_kept = [key for key in keys if any(parse_key(key).overlaps(one) for one in kept)]
    named = [*map(str, pending), *of_kept][:_MAX_NAMED]
    given_up = "write the offsets off" if pending else "keep the former rows"
    return state, f'{given_up} with `kafka-liveness write-off {group_id} {" ".join(named)} --reason "…"`'


def _ranges_to_reprocess(
    asset: KafkaAssetSettings, context: dg.AssetExecutionContext, asked: Mapping[str, OffsetRange]
) -> list[OffsetRange]:
    """Return the ranges to process completely, done or not: replays, and partitions materialized again.

    For a run of the group's sensor, which may be shared, these are only replays. What another run has
    materialized since needs no second pass. For a run that also materializes the live asset they are only
    replays not done yet.
    """
    by_sensor = CAUSE_TAG in context.run.tags
    ask = partial(context.instance.get_materialized_partitions, asset.crash_lag_key)
    done = (
        set[str]()
        if by_sensor
        else call_with_retries(ask, "the partitions of the asset", DATA_STATE_AT_START)
    )
    if materializes(context, asset.key):
        if left := [one for key, one in asked.items() if key in done]:
            storage_of(context).log.info(UNTOUCHED, join_some(left), "processed", asset.key.to_user_string())
        return [one for key, one in asked.items() if is_replay(key) and key not in done]
    return [one for key, one in asked.items() if key in done or is_replay(key)]


def _batches_until_idle(
    consumer: LivenessConsumer,
    idle_seconds: float,
    commit_interval_seconds: float,
    wait: AssignmentWait,
    materializations: Materializations,
) -> BatchSource:
    """Return a source of batches until none came for ``idle_seconds``.

    The wait for partitions in a rebalance does not count as idle. A batch that is not full begins after
    records have waited for ``commit_interval_seconds`` seconds.

    Only full batches are planned ahead. A small batch ahead costs as much as it saves, and later it is
    larger. This is KIP-41's first heuristic: while enough records are buffered, fetch nothing.
    """

    def next_batch(max_records: int, *, ahead: bool) -> Batch | None:
        idle_at = time.monotonic() + idle_seconds
        while consumer.has_time_for_batch():
            materializations.emit_if_due(may_wait=not ahead)
            if ahead:
                return consumer.poll(0, max_records, min_records=max_records)
            patience = max(0.0, idle_at - time.monotonic())
            seconds = min(patience, materializations.due_in_seconds)
            batch = consumer.poll(
                seconds, max_records, min_records=max_records, max_wait_seconds=commit_interval_seconds
            )
            if batch is not None:
                wait.finish()
                return batch
            if seconds < patience:
                continue
            if not wait.should_continue():
                return None
            idle_at = time.monotonic() + idle_seconds
        return None

    return next_batch


def _lag(consumer: LivenessConsumer) -> dict[str, int | float]:
    """Return the lag of this run's partitions.

    Empty if the broker is unavailable, because that must not fail the run.
    """
    found: dict[str, int | float] = {}
    if not consumer.is_joined:
        return found
    with suppress(KafkaLivenessError):
        found["lag"] = consumer.lag()
        if (seconds := consumer.seconds_behind()) is not None:
            found["seconds_behind"] = seconds
    return found


def _report_skipped(asset: KafkaAssetSettings, storage: RunStorage, asked: Sequence[str] = ()) -> OnSkipped:
    """Return a callback that reports passed offsets in the run's log and on the crash lag partition."""

    def tell_of(left_out: OffsetRange, why: str, cause: str) -> None:
        key = next((key for key in asked if parse_key(key).overlaps(left_out)), partition_key(left_out))
        storage.log.warning("%s", why)
        of = {GROUP: asset.group_id, TOPIC: left_out.topic, REASON: cause}
        record(DEAD_LETTERS, left_out.size, of)
        metadata: dict[str, str | int] = {
            "group": asset.group_id,
            "range": str(left_out),
            "offsets": left_out.size,
            "cause": cause,
        }
        event = dg.AssetObservation(asset.crash_lag_key, partition=key, description=why, metadata=metadata)
        storage.store_event(event, f"the observation of {left_out}, which was skipped")

    return tell_of


class IncompleteWindowError(KafkaLivenessError):
    """A time window cannot be reprocessed, because not all of its records were processed once."""


def reprocess_windows(
    asset: KafkaAssetSettings, windows: Windows, context: dg.AssetExecutionContext, transform: Transform
) -> None:
    """Process the windows of a run's partitions again; replace the rows of exactly their offsets.

    A run that also materializes the live asset, or whose backfill does, reprocesses nothing: windows that
    were marked complete stay so.

    Raises:
        IncompleteWindowError: some of their offsets are pending or not read yet. Nothing was changed.
        DataExpiredError: the broker has deleted records that may be of these windows. Nothing was changed.
    """
    require_partition(context, asset.partitioned_keys)
    if materializes(context, asset.key):
        _emit_unchanged(asset, windows, context)
        return
    with hide_values(), RunHeartbeat(context, _begin(asset, context, "catch-up")), export_telemetry():
        cluster = getattr(context.resources, asset.resources.kafka).cluster()
        keys = call_with_retries(lambda: context.partition_keys, "the keys of the run", DATA_STATE_AT_START)
        asked = [windows.window_of_key(key) for key in keys]
        found = {window: _processed_offsets(asset, windows, cluster, window=window) for window in asked}
        ranges = merge_ranges(r for several in found.values() for r in several)
        storage_of(context).log.info(
            "Reprocessing %s: %s", format_count(len(asked), "window"), join_some(ranges) or "no records"
        )
        pipeline = Pipeline.from_asset(asset, context, transform, lane="catch-up", reprocess=ranges)
        done = (
            run_catch_up_lane(asset, context, pipeline, ranges=ranges, reprocess=ranges) if ranges else None
        )
        for window, of_window in found.items():
            told = window_metadata(asset.group_id, of_window)
            numbers = done.tally.of_run(len(asked)) if done is not None else {}
            storage_of(context).add_metadata(
                window.key, {**told, **numbers, **pipeline.spark.links()}, DATA_STATE_AT_END
            )


def _emit_unchanged(asset: KafkaAssetSettings, windows: Windows, context: dg.AssetExecutionContext) -> None:
    """Materialize complete windows with their last metadata, because a backfill waits for these events.

    Raises:
        IncompleteWindowError: other windows of the run are not marked complete; the sensor marks them.
    """
    storage = storage_of(context)
    instance = context.instance
    keys = context.partition_keys
    marked = call_with_retries(
        partial(instance.get_materialized_partitions, windows.key),
        "the windows of the asset",
        DATA_STATE_AT_START,
    )
    known = {
        key: call_with_retries(
            partial(_latest_metadata, windows, instance, key), f"the metadata of {key}", DATA_STATE_AT_START
        )
        for key in keys
        if key in marked
    }
    if known:
        storage.log.info(UNTOUCHED, join_some([*known]), "marked complete", asset.key.to_user_string())
    if others := [key for key in keys if key not in marked]:
        for key, metadata in known.items():  # emitted here, because a failing run returns no materializations
            event = dg.AssetMaterialization(windows.key, partition=key, metadata=metadata)
            storage.store_event(event, f"the materialization of {key}")
        raise IncompleteWindowError(
            f"Windows not marked complete ({len(others):,}): {join_some(others)}. Nothing was "
            f"processed, and windows that are marked complete stay so. The sensor of group {asset.group_id} "
            f"marks a window once all its records are in {asset.target}, and none before the group's first "
            "record. Fix: none is needed; *windows* in the events of the topic's asset shows what the next "
            "window waits for"
        )
    for key, metadata in known.items():
        storage.add_metadata(key, metadata, DATA_STATE_AT_START)


def _latest_metadata(windows: Windows, instance: dg.DagsterInstance, key: str) -> dict[str, Any]:
    """Return the metadata of a window's newest materialization."""
    asked = dg.AssetRecordsFilter(asset_key=windows.key, asset_partitions=[key])
    found = instance.fetch_materializations(asked, limit=1).records
    newest = found[0].asset_materialization if found else None
    return dict(newest.metadata) if newest else {}


def _processed_offsets(
    asset: KafkaAssetSettings, windows: Windows, cluster: Cluster, window: Window
) -> tuple[OffsetRange, ...]:
    """Return the offsets of one window, after the check that all of them are processed.

    Raises:
        IncompleteWindowError: some are not processed.
        DataExpiredError: records have expired, so that not all of its offsets are known.
    """
    from kafka_liveness_dagster.kafka.timestamps import processed_ranges  # noqa: PLC0415 - confluent_kafka stays lazy

    until = window.end + windows.allowed_lateness_seconds
    if until > time.time():
        raise IncompleteWindowError(
            f"records of {window} may arrive until {_format_time(until)}. Nothing was processed. Fix: "
            "materialize the window after that"
        )
    try:
        found = processed_ranges(
            cluster,
            asset.group_id,
            asset.topics,
            begin_ms=round(1000 * window.begin),
            end_ms=round(1000 * until),
        )
    except DataExpiredError as error:
        raise DataExpiredError(
            f"{error}: {window} cannot be processed again as a whole. Its rows stay as they are. Fix: "
            f"process the remaining records with `kafka-liveness replay {asset.group_id} --from "
            f"{_format_time(window.begin)} --to {_format_time(window.end)} --allow-expired`"
        ) from None
    if found.pending or found.unread:
        remedies = [
            f"materialize their partitions of {asset.crash_lag_key.to_user_string()}; dead letters among "
            f"them need another transform, or `kafka-liveness write-off {asset.group_id}`"
            if found.pending
            else "",
            "a live run reads the others" if found.unread else "",
        ]
        raise IncompleteWindowError(
            f"{window} is not complete: {sum(r.size for r in found.pending):,} offsets are pending "
            f"({join_some(found.pending) or 'none'}), {found.unread:,} are not read yet. Nothing was "
            f"processed again. Fix: {'; '.join(filter(None, remedies))}. The sensor marks the window "
            "complete then"
        )
    return found.ranges


def _format_time(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat()
