"""A run of each lane, and a run of a time window: from its consumer to its Dagster results.

What is told of a window while nobody asks for it is the sensor's; a run changes rows, and neither commit log.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from kafka_liveness_dagster.core.bad_records import BadRecordError
from kafka_liveness_dagster.core.batch_size import PoisonedOffsetError
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.names import listed
from kafka_liveness_dagster.core.partition_keys import is_replay, key_of, range_of
from kafka_liveness_dagster.core.partition_state import DataExpiredError
from kafka_liveness_dagster.failpoints import Failpoint, failpoint
from kafka_liveness_dagster.lanes.assignment_wait import Waiting
from kafka_liveness_dagster.lanes.dead_letters import remove_processed
from kafka_liveness_dagster.lanes.hidden_values import without_values
from kafka_liveness_dagster.lanes.materializations import Materializations
from kafka_liveness_dagster.lanes.pipeline import Pipeline, answer_seconds, table_now
from kafka_liveness_dagster.lanes.row_check import check_rows
from kafka_liveness_dagster.metadata import Tally, counted, merged, number, range_metadata, range_table, window_metadata
from kafka_liveness_dagster.runs.heartbeat import SignsOfLife
from kafka_liveness_dagster.runs.selection import has_dependents, materializes, require_partition
from kafka_liveness_dagster.runs.storage import needed, storage_of
from kafka_liveness_dagster.runs.tags import (
    AT_BEGIN,
    AT_END,
    BACKFILL_TAG,
    CAUSE_TAG,
    MAX_RETRIES,
    NO_RETRIES,
    lane_tags,
)
from kafka_liveness_dagster.settings.consumers import CatchUpSettings, ConsumerSettings
from kafka_liveness_dagster.telemetry.metrics import DEAD_LETTERS, GROUP, REASON, TOPIC
from kafka_liveness_dagster.telemetry.otel import exported, tell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer
    from kafka_liveness_dagster.lanes.protocols import LeftOut, Source, Transform
    from kafka_liveness_dagster.runs.storage import RunStorage
    from kafka_liveness_dagster.settings.asset import KafkaAssetSettings
    from kafka_liveness_dagster.settings.windows import Window, Windows


LEFT_ALONE = (
    "Left %s alone: %s already, and this run or its backfill materializes %s, too. To process a partition again, "
    "materialize its partition without that asset"
)
_NAMED = 5  # ranges in a command that an error shows; the next run names the others


def run_live(
    asset: KafkaAssetSettings, context: dg.AssetExecutionContext, transform: Transform
) -> dg.MaterializeResult | None:  # type: ignore[type-arg]
    """One run of the live lane: batches until no new data comes, or the run's own budget is nearly spent.

    Gives what no materialization has told while it was at work, None for nothing.
    """
    require_partition(context, asset.partitioned_keys)
    retries = {} if MAX_RETRIES in context.run.tags else NO_RETRIES
    with without_values(), SignsOfLife(context, {**lane_tags(asset.group_id, "live"), **retries}), exported():
        return _live(asset, context, transform)


def _live(
    asset: KafkaAssetSettings, context: dg.AssetExecutionContext, transform: Transform
) -> dg.MaterializeResult | None:  # type: ignore[type-arg]
    pipeline, storage = Pipeline.of(asset, context, transform, "live"), storage_of(context)
    pipeline.spark.open_ahead()
    with pipeline.kafka.consumer(
        topics=asset.topics,
        group_id=asset.group_id,
        context=context,
        max_poll_records=asset.most_records,
        enable_parallel_rebalance=asset.enable_parallel_rebalance,
        batching=asset.batching.only(ConsumerSettings.uses["batching"]),
        crash_lag=asset.crash_lag.only(ConsumerSettings.uses["crash_lag"]),
        offsets=asset.offsets,
        membership=asset.membership,
        witness=pipeline.witness,
    ) as consumer:
        storage.log.info("%s", consumer.timeouts)
        known, at_end = Counter[str](), dict[str, int | float]()
        told = Materializations(
            storage,
            context.asset_key,
            asset.group_id,
            asset.materialize_interval_seconds,
            table_now=lambda: table_now(asset, pipeline.spark, consumer.timeouts.budget.seconds),
            facts=lambda: {**_facts(consumer, context, pipeline, known), **at_end},
        )
        waiting = Waiting(consumer, storage)
        next_batch = _until_idle(consumer, asset.idle_seconds, asset.batching.commit_interval_seconds, waiting, told)
        try:
            pipeline.run(consumer, next_batch, storage.log, _quarantines(asset, storage), told)
            if told.has_news:
                at_end.update(_lag(consumer))  # while this run has the partitions
            consumer.leave()  # all is committed: no silent broker or Spark makes a crash of the steps that follow
            check_rows(consumer, storage.log, answer_seconds(consumer.timeouts.budget.seconds), told.batches)
            storage.log.info("%s committed in this run", number(told.batches, "batch"))
            committed = f"{number(told.batches, 'batch')} of this run are in the table once and committed"
            storage.settle(f"{committed}; {told.untold_batches:,} of them are in no materialization that Dagster has")
            last = told.last(always=_needs_output(consumer, context, told, known))
        except BaseException:
            told.tell_what_is_left()
            raise
    failpoint(Failpoint.BEFORE_MATERIALIZATION)
    return last


def _needs_output(
    consumer: LivenessConsumer, context: dg.AssetExecutionContext, told: Materializations, known: Counter[str]
) -> bool:
    """Return whether the run ends with a materialization although no batch is new since the last one.

    Dagster skips the steps that depend on this one unless it has an output, and materializations in mid-run are none.
    Recovered rows were written by a run that died before it could report them. A backfill of Dagster's (*Materialize
    all*) fails if one of its runs materializes nothing.
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


def _facts(
    consumer: LivenessConsumer, context: dg.AssetExecutionContext, pipeline: Pipeline, known: Counter[str]
) -> dict[str, Any]:
    """What each materialization says beside what was written; of what was found, what is not ``known`` yet."""
    found = {
        "crash_lag_found": consumer.jumped,
        "recovered": consumer.recovered,
        "crash_lag_restored": consumer.forgotten,
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
    """One run of the catch-up lane: what is still owed of the run's partitions, oldest first."""
    require_partition(context, asset.partitioned_keys)
    with without_values(), SignsOfLife(context, lane_tags(asset.group_id, "catch-up")), exported():
        _catch_up(asset, context, transform)


def _catch_up(asset: KafkaAssetSettings, context: dg.AssetExecutionContext, transform: Transform) -> None:
    asked = {key: range_of(key) for key in needed(lambda: context.partition_keys, "the keys of the run", AT_BEGIN)}
    again = _again(asset, context, asked)
    pipeline = Pipeline.of(asset, context, transform, "catch-up", again)
    pipeline.spark.open_ahead()
    done = catch_up(asset, context, pipeline, list(asked.values()), again=again, keys=list(asked))
    for key, one in asked.items():
        numbers = done.tally.of_run(len(asked))
        told = range_metadata(asset.group_id, one, done.owed, done.lost, numbers, again=one in again)
        storage_of(context).metadata_of(key, {**told, **pipeline.spark.links()}, AT_END)


class CaughtUp(NamedTuple):
    """What a run of the catch-up lane has done: what was owed at its beginning, and what of it was lost."""

    owed: Sequence[OffsetRange]
    lost: Sequence[OffsetRange]
    tally: Tally


def catch_up(
    asset: KafkaAssetSettings,
    context: dg.AssetExecutionContext,
    pipeline: Pipeline,
    ranges: Sequence[OffsetRange],
    *,
    again: Sequence[OffsetRange],
    keys: Sequence[str] = (),
) -> CaughtUp:
    """Process what is owed of these ranges, and all of those that are done ``again``; ``keys`` are their partitions.

    Raises:
        PoisonedOffsetError: all is done, but for offsets that are too slow alone.
    """
    with pipeline.kafka.catch_up(
        group_id=asset.group_id,
        ranges=ranges,
        reprocess=again,
        context=context,
        max_poll_records=asset.most_records,
        offsets=asset.offsets.only(CatchUpSettings.uses["offsets"]),
        witness=pipeline.witness,
    ) as lane:
        owed, storage = lane.outstanding_ranges(), storage_of(context)
        storage.log.info("a batch may take %s", lane.budget)
        storage.log.info("%s; still owed: %s", number(len(ranges), "range"), listed(owed) or "nothing")
        if again:
            storage.log.info("processed again, whatever is owed of them: %s", listed(again))
        tally = Tally()
        pipeline.run(lane, lane.poll, storage.log, _quarantines(asset, storage, keys), tally)
        left_out, bad, lost, done = lane.quarantined, lane.bad, lane.lost, lane.done_ranges()
        state, remedy = _left_behind(asset.group_id, [*left_out, *bad], lane.kept_ranges(), keys)
    if asset.table is not None:
        remove_processed(pipeline.spark, asset.table, done, lane.budget.seconds)
    storage.log.info("written in %s: %s", number(tally.batches, "batch"), counted(tally.rows))
    if left_out:
        raise PoisonedOffsetError(left_out, lane.budget.seconds, f"{state}. Or {remedy}")
    if bad:
        fix = f"Fix: correct the transform, and materialize *Failed and missing*; or {remedy}"
        raise BadRecordError(bad, "", f"{state}. {fix}. The records are in {asset.table}_dead_letters")
    failpoint(Failpoint.BEFORE_MATERIALIZATION)
    return CaughtUp(owed, lost, tally)


def _left_behind(
    group_id: str, left_out: Sequence[OffsetRange], kept: Sequence[OffsetRange], keys: Sequence[str]
) -> tuple[str, str]:
    """What became of offsets that a catch-up run left out, and how a person closes their partitions as they are.

    Args:
        group_id: of the live lane.
        left_out: each is one offset.
        kept: those that were processed before; the others are owed.
        keys: partitions of the crash lag asset; none for a run of complete windows.
    """
    owed = merged(one for one in left_out if one not in kept)
    state = "All else of these partitions is done. "
    state += "They stay failed until the offsets are done" if owed else ""
    state += "; t" if owed and kept else "T" if kept else ""
    state += f"he former rows of {listed(merged(kept))} are still in the table" if kept else ""
    if kept and not keys:
        return state, "keep the former rows by *Report materialization events*, in the menu beside Materialize"
    of_kept = [key for key in keys if any(range_of(key).overlaps(one) for one in kept)]
    named = [*map(str, owed), *of_kept][:_NAMED]
    given_up = "give the offsets up" if owed else "keep the former rows"
    return state, f'{given_up} by `kafka-liveness write-off {group_id} {" ".join(named)} --reason "…"`'


def _again(
    asset: KafkaAssetSettings, context: dg.AssetExecutionContext, asked: Mapping[str, OffsetRange]
) -> list[OffsetRange]:
    """What is processed whole, done or not: what somebody materializes once more, and what is to be replayed.

    The sensor asks for what is missing; if it was materialized since by somebody else's run, that is all it wanted.
    Who materializes the live asset, too, wants what is not done yet.
    """
    by_sensor = context.run.tags.get("dagster/sensor_name") == f"{asset.identifier}_sensor"
    ask = partial(context.instance.get_materialized_partitions, asset.crash_lag_key)
    done = set[str]() if by_sensor else needed(ask, "the partitions of the asset", AT_BEGIN)
    if materializes(context, asset.key):
        if left := [one for key, one in asked.items() if key in done]:
            storage_of(context).log.info(LEFT_ALONE, listed(left), "processed", asset.key.to_user_string())
        return [one for key, one in asked.items() if is_replay(key) and key not in done]
    return [one for key, one in asked.items() if key in done or is_replay(key)]


def _until_idle(
    consumer: LivenessConsumer,
    idle_seconds: float,
    commit_interval_seconds: float,
    waiting: Waiting,
    told: Materializations,
) -> Source:
    """Batches until none came for so long; the wait for a rebalance to give us a part does not count as idle.

    One that is not full begins when something has waited for it for ``commit_interval_seconds`` seconds.

    Ahead only full ones: a small batch costs as much as it saves, and what is new until the one in flight has landed
    makes it larger (KIP-41's first heuristic: as long as enough is at hand, fetch nothing).
    """

    def next_batch(max_records: int, *, ahead: bool) -> Batch | None:
        idle_at = time.monotonic() + idle_seconds
        while consumer.has_time_for_a_batch():
            told.tell_if_due(may_wait=not ahead)
            if ahead:
                return consumer.poll(0, max_records, min_records=max_records)
            patience = max(0.0, idle_at - time.monotonic())
            seconds = min(patience, told.due_in_seconds)
            batch = consumer.poll(
                seconds, max_records, min_records=max_records, max_wait_seconds=commit_interval_seconds
            )
            if batch is not None:
                waiting.ended()
                return batch
            if seconds < patience:
                continue
            if not waiting.goes_on():
                return None
            idle_at = time.monotonic() + idle_seconds
        return None

    return next_batch


def _lag(consumer: LivenessConsumer) -> dict[str, int | float]:
    """What the partitions of this run still have to be read; a broker that is away just now is no reason to fail."""
    found: dict[str, int | float] = {}
    if not consumer.joined:
        return found
    with suppress(KafkaLivenessError):
        found["lag"] = consumer.lag()
        if (seconds := consumer.seconds_behind()) is not None:
            found["seconds_behind"] = seconds
    return found


def _quarantines(asset: KafkaAssetSettings, storage: RunStorage, asked: Sequence[str] = ()) -> LeftOut:
    """Tells the run's log and the crash lag partition of offsets that were passed, and why."""

    def tell_of(left_out: OffsetRange, why: str, cause: str) -> None:
        key = next((key for key in asked if range_of(key).overlaps(left_out)), key_of(left_out))
        storage.log.warning("%s", why)
        of = {GROUP: asset.group_id, TOPIC: left_out.topic, REASON: cause}
        tell(DEAD_LETTERS, left_out.size, of)
        metadata: dict[str, str | int] = {
            "group": asset.group_id,
            "range": str(left_out),
            "offsets": left_out.size,
            "cause": cause,
        }
        event = dg.AssetObservation(asset.crash_lag_key, partition=key, description=why, metadata=metadata)
        storage.event(event, f"the observation of {left_out}, which was passed")

    return tell_of


class IncompleteWindowError(KafkaLivenessError):
    """A window of time is to be processed again whose records were not all processed once."""


def run_windows(
    asset: KafkaAssetSettings, windows: Windows, context: dg.AssetExecutionContext, transform: Transform
) -> None:
    """Process the windows of a run's partitions again: rows of exactly their offsets are replaced.

    A run that materializes the live asset, too, or whose backfill does, processes none: windows that were marked
    complete stay so.

    Raises:
        IncompleteWindowError: something of them is owed, or not read yet: nothing was touched.
        DataExpiredError: the broker has deleted records that may be theirs: nothing was touched.
    """
    require_partition(context, asset.partitioned_keys)
    if materializes(context, asset.key):
        _leave_alone(asset, windows, context)
        return
    with without_values(), SignsOfLife(context, lane_tags(asset.group_id, "catch-up")), exported():
        cluster = getattr(context.resources, asset.resources.kafka).cluster()
        keys = needed(lambda: context.partition_keys, "the keys of the run", AT_BEGIN)
        asked = [windows.of_key(key) for key in keys]
        found = {window: _offsets(asset, windows, cluster, window) for window in asked}
        ranges = merged(r for several in found.values() for r in several)
        storage_of(context).log.info("%s again: %s", number(len(asked), "window"), listed(ranges) or "no records")
        pipeline = Pipeline.of(asset, context, transform, "catch-up", again=ranges)
        done = catch_up(asset, context, pipeline, ranges, again=ranges) if ranges else None
        for window, of_window in found.items():
            told = window_metadata(asset.group_id, of_window)
            numbers = done.tally.of_run(len(asked)) if done is not None else {}
            storage_of(context).metadata_of(window.key, {**told, **numbers, **pipeline.spark.links()}, AT_END)


def _leave_alone(asset: KafkaAssetSettings, windows: Windows, context: dg.AssetExecutionContext) -> None:
    """Materialize the windows that are marked complete with what they had: a backfill waits for these events.

    Raises:
        IncompleteWindowError: others of the run's windows are not marked complete; the sensor marks them.
    """
    storage, instance, keys = storage_of(context), context.instance, context.partition_keys
    marked = needed(partial(instance.get_materialized_partitions, windows.key), "the windows of the asset", AT_BEGIN)
    known = {
        key: needed(partial(_metadata, windows, instance, key), f"the metadata of {key}", AT_BEGIN)
        for key in keys
        if key in marked
    }
    if known:
        storage.log.info(LEFT_ALONE, listed([*known]), "marked complete", asset.key.to_user_string())
    if others := [key for key in keys if key not in marked]:
        for key, metadata in known.items():  # a run that fails materializes nothing by itself
            event = dg.AssetMaterialization(windows.key, partition=key, metadata=metadata)
            storage.event(event, f"the materialization of {key}")
        raise IncompleteWindowError(
            f"Windows not marked complete ({len(others):,}): {listed(others)}. Nothing was processed, and windows "
            f"that are marked complete stay so. The sensor {asset.identifier}_sensor marks a window once all its "
            f"records are in {asset.target}, and none before the group's first record. Fix: none is needed; *windows* "
            "in the events of the topic's asset says what the next window waits for"
        )
    for key, metadata in known.items():
        storage.metadata_of(key, metadata, AT_BEGIN)


def _metadata(windows: Windows, instance: dg.DagsterInstance, key: str) -> dict[str, Any]:
    """Return what the newest materialization of a window says."""
    asked = dg.AssetRecordsFilter(asset_key=windows.key, asset_partitions=[key])
    found = instance.fetch_materializations(asked, limit=1).records
    newest = found[0].asset_materialization if found else None
    return dict(newest.metadata) if newest else {}


def _offsets(asset: KafkaAssetSettings, windows: Windows, cluster: Cluster, window: Window) -> tuple[OffsetRange, ...]:
    """The offsets of one window, all of them processed.

    Raises:
        IncompleteWindowError: some are not.
        DataExpiredError: nobody knows them all.
    """
    from kafka_liveness_dagster.kafka.timestamps import processed  # noqa: PLC0415 - confluent_kafka stays lazy

    until = window.end + windows.allowed_lateness_seconds
    if until > time.time():
        raise IncompleteWindowError(
            f"records of {window} may come until {_iso(until)}: nothing was processed; materialize it after that"
        )
    try:
        found = processed(cluster, asset.group_id, asset.topics, round(1000 * window.begin), round(1000 * until))
    except DataExpiredError as error:
        raise DataExpiredError(
            f"{error}: {window} cannot be processed again as a whole. Its rows stay as they are; "
            f"`kafka-liveness replay {asset.group_id} --from {_iso(window.begin)} --to {_iso(window.end)} "
            "--allow-expired` processes the records that are still there"
        ) from None
    if found.owed or found.ahead:
        remedies = [
            f"materialize their partitions of {asset.crash_lag_key.to_user_string()}; dead letters among them need "
            f"another transform, or `kafka-liveness write-off {asset.group_id}`"
            if found.owed
            else "",
            "a live run reads the others" if found.ahead else "",
        ]
        raise IncompleteWindowError(
            f"{window} is not complete: {sum(r.size for r in found.owed):,} offsets are owed "
            f"({listed(found.owed) or 'none'}), {found.ahead:,} are not read yet. Nothing was processed again. "
            f"Fix: {'; '.join(filter(None, remedies))}. The sensor marks the window complete then"
        )
    return found.ranges


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat()
