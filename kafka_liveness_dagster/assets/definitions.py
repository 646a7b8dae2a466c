"""Build the assets, jobs, schedules and sensor of a declared Kafka asset. Decides nothing about data."""

# No `from __future__ import annotations` here: Dagster compares the annotation of an op's context with its
# class.
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cached_property
from inspect import signature
from typing import Any, cast

import dagster as dg

from kafka_liveness_dagster.assets.owners import claim_group, shared_sensor_of
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.lanes.maintenance import run_maintenance
from kafka_liveness_dagster.lanes.runs import reprocess_windows, run_catch_up, run_live
from kafka_liveness_dagster.runs.tags import LIVE_PRIORITY, MAX_BATCH_SECONDS, NO_RETRIES, lane_tags
from kafka_liveness_dagster.sensor.asset_events import topic_key
from kafka_liveness_dagster.sensor.checks import GroupChecks
from kafka_liveness_dagster.sensor.sensor import build_group_sensor
from kafka_liveness_dagster.settings.asset import KafkaAssetSettings
from kafka_liveness_dagster.settings.asset_arguments import JOB_ARGUMENTS, LIVE_ASSET_ONLY
from kafka_liveness_dagster.settings.transform import TransformSignature
from kafka_liveness_dagster.settings.windows import Windows


def maintenance_schedule(settings: KafkaAssetSettings) -> dg.ScheduleDefinition:
    """Return the schedule of the table's maintenance, with its job."""
    keys = settings.resources
    told = settings.maintenance

    @dg.op(name=f"maintain_{settings.identifier}", required_resource_keys={keys.kafka, keys.spark})
    def maintain(context: dg.OpExecutionContext) -> None:
        run_maintenance(settings, context)

    @dg.job(
        name=f"{settings.identifier}_maintenance_job",
        description=(
            f"Maintains table {settings.table}: compacts small files, expires old snapshots, deletes orphan "
            "files. Never touches ranges that a lane may write again; a lane's commit always comes first."
        ),
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        maintain()

    return dg.ScheduleDefinition(
        name=f"{settings.identifier}_maintenance",
        job=job,
        cron_schedule=told.cron_schedule,
        default_status=told.default_status,
    )


_DURATION_UNITS = {"15min": "a quarter of an hour", "1h": "an hour", "1d": "a day"}


def live_description(settings: KafkaAssetSettings) -> str:
    """Return the description of a live asset without a docstring of its own, in Markdown."""
    topics = ", ".join(f"`{topic}`" for topic in settings.topics)
    return (
        f"Records of Kafka topic{'s' if len(settings.topics) > 1 else ''} {topics}, written to "
        f"`{settings.target}` by the live runs of consumer group `{settings.group_id}`. Ranges that a crash "
        f"left pending are partitions of `{settings.crash_lag_key.to_user_string()}`."
    )


def crash_lag_description(settings: KafkaAssetSettings, sensor: str) -> str:
    """Return the description of the crash lag asset in Markdown: its partitions, and the clicks for them."""
    return (
        f"Offset ranges that the live lane of {settings.name} left pending when it skipped ahead to the log "
        "end after a crash. Partition `p3:orders:70-120` is Kafka partition 3 of topic orders, from offset "
        "70 to before 120. The rows of a missing or failed partition are not in "
        f"`{settings.target}`, or not by the current code.\n\n"
        "- **To process them:** *Materialize…*, *Failed and missing*, *Launch backfill*; in any order, "
        "while the live lane goes on.\n"
        "- **Cause, event time and size of each:** its event in the *Events* tab. A failed partition has its "
        "error in the log of its run.\n"
        "- **To process one again:** select it; exactly the rows of its offsets are replaced.\n"
        f"- **To add partitions:** the sensor `{sensor}` does, and `kafka-liveness "
        "replay` for records that are to be processed again. *Add a partition* in the dialog adds a name "
        "without records: its run fails, and nothing is written."
    )


def windows_description(settings: KafkaAssetSettings, windows: Windows, sensor: str) -> str:
    """Return Markdown for the asset of windows: the meaning of its partitions, and the steps in the UI."""
    return (
        f"Each partition is {_DURATION_UNITS[windows.every]}, by the records' own timestamps "
        f"({windows.timezone}). It is materialized when **every record of it is in {settings.target}**, "
        "whichever lane wrote it: no offset of it is pending or unread.\n\n"
        f"- **What adds partitions:** the sensor `{sensor}`, "
        f"{windows.allowed_lateness_seconds:,g} s after the end at the earliest.\n"
        "- **Why a partition is missing:** *windows* in the events of the topic's asset has the "
        "reason. No window before the group's first record is marked.\n"
        "- **Records that arrived later:** *late_records* in its events.\n"
        "- **To reprocess a partition:** *Materialize…*; the current code replaces the rows of exactly its "
        "offsets."
    )


def topic_specs(topics: Sequence[str]) -> list[dg.AssetSpec]:
    """Return the topics as assets.

    The asset of a topic is the same for every group, because Dagster merges only equal definitions.
    """
    told = (
        "Kafka topic. Its events show the consumer groups that read it: members, lag and crashes. Runs of "
        "this package read it; it is not materialized."
    )
    return [dg.AssetSpec(topic_key(topic), description=told, kinds={"kafka"}) for topic in topics]


def metadata_links(settings: KafkaAssetSettings) -> dict[str, Any]:
    """Return links to the topics, and the name of the table or sink.

    Dagster shows a table by the metadata ``dagster/table_name``.
    """
    topics = {f"topic {topic}": dg.MetadataValue.asset(topic_key(topic)) for topic in settings.topics}
    table = settings.table
    to = {"table": table, "dagster/table_name": table} if table else {"sink": settings.target}
    return {**topics, **to}


def query_metadata(settings: KafkaAssetSettings) -> dict[str, Any]:
    """Return the SELECT of a component as metadata; empty for a function."""
    sql = getattr(settings.transform, "sql", None)
    return {"sql": dg.MetadataValue.md(f"```sql\n{sql}\n```")} if isinstance(sql, str) else {}


class KafkaAsset:
    """A pipeline from a Kafka topic to a table, which ``@kafka_asset`` creates from a function.

    Put ``definitions`` into your code location, or pick single parts: ``live``, ``crash_lag``, ``live_job``,
    ``crash_lag_job``, ``windows``, ``checks``, ``checks_job``, ``maintenance``, ``sensor``. The attribute
    ``settings`` has the declared settings.
    """

    def __init__(self, settings: KafkaAssetSettings) -> None:
        self.settings = settings

    @property
    def name(self) -> str:
        """The name of the live asset."""
        return self.settings.name

    @property
    def identifier(self) -> str:
        """The name, after the ``key_prefix`` if there is one; jobs, sensor and pool are named after it."""
        return self.settings.identifier

    @property
    def group_id(self) -> str:
        """The consumer group of the live lane."""
        return self.settings.group_id

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the group subscribes to."""
        return self.settings.topics

    @property
    def target(self) -> str:
        """The name of the table or of the sink."""
        return self.settings.target

    @property
    def definitions(self) -> dg.Definitions:
        """All parts, ready for ``Definitions.merge``. They do not include the resources."""
        return self.definitions_alongside(())

    def definitions_alongside(self, declared: Container[str]) -> dg.Definitions:
        """Return all parts without the assets of these topics, which the code location declares elsewhere.

        Raises:
            InvalidSettingError: another asset of this process has the same group.
        """
        claim_group(self)
        topics = [
            spec
            for topic, spec in zip(self.topics, topic_specs(self.topics), strict=True)
            if topic not in declared
        ]
        return dg.Definitions(
            assets=[*topics, self.live, self.crash_lag, *([self.windows] if self.windows else [])],
            asset_checks=[self.checks],
            jobs=[self.live_job, self.crash_lag_job, self.checks_job],
            schedules=[self.maintenance] if self.maintenance else [],
            sensors=[] if shared_sensor_of(self) else [self.sensor],
        )

    @cached_property
    def live(self) -> dg.AssetsDefinition:
        """The asset of the live lane. One run processes batches until no new data arrives."""

        def live(context: dg.AssetExecutionContext, **others: Any) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
            transform = self._transform_signature.bind(self.settings.transform, context, others)
            # None if the run has reported every materialization already
            if (told := run_live(self.settings, context, transform)) is not None:
                yield told

        description = self.settings.transform.__doc__ or live_description(self.settings)
        its_own = {"description": description, **self._arguments(LIVE_ASSET_ONLY)}
        return self._asset(live, name=self.name, output_required=False, **its_own)

    @cached_property
    def crash_lag(self) -> dg.AssetsDefinition:
        """The asset of the catch-up lane, with the crash lag ranges as its partitions."""

        def crash_lag(context: dg.AssetExecutionContext, **others: Any) -> None:
            run_catch_up(
                self.settings,
                context,
                self._transform_signature.bind(self.settings.transform, context, others),
            )

        return self._asset(
            crash_lag,
            name=self.settings.crash_lag_key.path[-1],
            description=crash_lag_description(self.settings, self._sensor_name),
            partitions_def=dg.DynamicPartitionsDefinition(name=self._partitions_name),
            backfill_policy=self.settings.crash_lag.backfill_policy or dg.BackfillPolicy.single_run(),
            pool=self._partitions_name,  # a backfill's runs carry no tags to limit them by
        )

    @cached_property
    def windows(self) -> dg.AssetsDefinition | None:
        """The asset with complete windows of time as its partitions; None without ``complete_every``."""
        windows = self.settings.windows
        if windows is None:
            return None

        def window(context: dg.AssetExecutionContext, **others: Any) -> None:
            transform = self._transform_signature.bind(self.settings.transform, context, others)
            reprocess_windows(self.settings, windows, context, transform=transform)

        return self._asset(
            window,
            name=windows.key.path[-1],
            description=windows_description(self.settings, windows, self._sensor_name),
            partitions_def=windows.definition,
            backfill_policy=dg.BackfillPolicy.single_run(),
            pool=self._partitions_name,  # such a run reprocesses ranges, like one of crash lag
        )

    @cached_property
    def live_job(self) -> Any:
        """The job that materializes ``live``; the sensor starts it."""
        tags = {**LIVE_PRIORITY, **self._run_tags, **NO_RETRIES, **lane_tags(self.group_id, "live")}
        return self._job(self.live, tags)

    @cached_property
    def crash_lag_job(self) -> Any:
        """The job that materializes partitions of ``crash_lag``."""
        return self._job(self.crash_lag, {**self._run_tags, **lane_tags(self.group_id, "catch-up")})

    @cached_property
    def checks(self) -> dg.AssetChecksDefinition:
        """The asset checks of the group: members, lag, crash lag, retention and exact offsets."""
        keys = self.settings.resources
        return group_checks(self).definition(f"{self.identifier}_checks", keys.kafka, keys.spark)

    @cached_property
    def checks_job(self) -> Any:
        """The job that evaluates ``checks``, for your own schedule. The sensor evaluates them without it."""
        selection = dg.AssetSelection.checks(self.checks)
        return dg.define_asset_job(
            f"{self.identifier}_checks_job", selection, executor_def=dg.in_process_executor
        )

    @cached_property
    def maintenance(self) -> dg.ScheduleDefinition | None:
        """The schedule of the table's maintenance, off by default; None without a table."""
        return maintenance_schedule(self.settings) if self.settings.table else None

    @cached_property
    def sensor(self) -> dg.SensorDefinition:
        """The sensor of the consumer group: see :func:`build_group_sensor`.

        Raises:
            InvalidSettingError: a shared sensor watches the group.
        """
        if shared := shared_sensor_of(self):
            raise InvalidSettingError(
                f"Asset {self.identifier} has no sensor of its own: shared sensor {shared} watches group "
                f"{self.group_id}. Two sensors would report each event twice. Fix: use one of them"
            )
        return build_group_sensor(**sensor_arguments(self), name=f"{self.identifier}_sensor")

    @property
    def _sensor_name(self) -> str:
        return shared_sensor_of(self) or f"{self.identifier}_sensor"

    @property
    def _partitions_name(self) -> str:
        return self.settings.crash_lag_key.to_python_identifier()

    @property
    def _run_tags(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", self.settings.arguments.get("run_tags", {}))

    @cached_property
    def _transform_signature(self) -> TransformSignature:
        return self.settings.transform_signature

    def _arguments(self, names: Container[str]) -> dict[str, Any]:
        return {name: value for name, value in self.settings.arguments.items() if name in names}

    def _asset(self, run: Callable[..., Any], **its_own: Any) -> dg.AssetsDefinition:
        """Return an asset with an op that calls this function, with the transform's other parameters."""
        keys = self.settings.resources
        declared = self._transform_signature.op_signature(
            [keys.kafka, keys.spark], signature(run).return_annotation
        )
        run.__signature__ = declared  # type: ignore[attr-defined]  # Dagster passes these parameters
        given = {name: one.annotation for name, one in declared.parameters.items()}
        # Dagster 1.13.20 still reads the annotations
        run.__annotations__ = {**given, "return": declared.return_annotation}
        with warnings.catch_warnings():
            # The warning is about backfill_policy, which this package sets by default
            warnings.simplefilter("ignore", dg.BetaWarning)
            return cast("dg.AssetsDefinition", dg.asset(**self._shared_arguments(), **its_own)(run))

    def _shared_arguments(self) -> dict[str, Any]:
        """Return the arguments that are the same for all three assets."""
        given = self.settings.arguments
        alike = given.keys() - LIVE_ASSET_ONLY - JOB_ARGUMENTS
        # The run budget is asset metadata, because the runs of a backfill have no op tags
        budget = (
            {}
            if self.settings.max_batch_seconds is None
            else {MAX_BATCH_SECONDS: self.settings.max_batch_seconds}
        )
        ours = {
            "group": self.group_id,
            **metadata_links(self.settings),
            **query_metadata(self.settings),
            **budget,
        }
        return {
            **self._arguments(alike),
            "deps": [*map(topic_key, self.topics), *given.get("deps", ())],
            "group_name": self.settings.group_name,
            "kinds": {
                "kafka",
                "spark",
                *(["iceberg"] if self.settings.table else []),
                *given.get("kinds", ()),
            },
            "metadata": {**given.get("metadata", {}), **ours},
        }

    def _job(self, asset: dg.AssetsDefinition, tags: dict[str, str]) -> Any:
        """Return the asset's job, which runs in one process.

        The multiprocess executor would leave a step running after its run worker is killed.
        """
        return dg.define_asset_job(
            f"{asset.key.to_python_identifier()}_job",
            # The sensor evaluates the checks at its ticks
            selection=dg.AssetSelection.assets(asset.key).without_checks(),
            executor_def=dg.in_process_executor,
            tags=tags,
        )


def group_checks(asset: KafkaAsset) -> GroupChecks:
    """Return the checks of the asset's group."""
    settings = asset.settings
    return GroupChecks(
        group_id=asset.group_id,
        topics=asset.topics,
        live=asset.live.key,
        crash_lag=asset.crash_lag.key,
        partitions_name=settings.crash_lag_key.to_python_identifier(),
        max_lag=settings.sensor.max_lag,
        max_crash_lag_age_seconds=settings.crash_lag.max_age_seconds,
        max_poll_records=settings.max_records,
        max_live_runs=settings.sensor.max_live_runs,
        ghost_after_seconds=settings.sensor.ghost_after_seconds,
        table=settings.table,
        sla=settings.sla.service_level,
        has_dead_letters=settings.batching.on_bad_record == "dead_letter",
    )


def sensor_arguments(asset: KafkaAsset) -> dict[str, Any]:
    """Return the arguments of the asset's group for a sensor, without the sensor's name."""
    settings = asset.settings
    return {
        "group_id": asset.group_id,
        "topics": asset.topics,
        "live_job": asset.live_job,
        "crash_lag": asset.crash_lag,
        "crash_lag_job": asset.crash_lag_job if settings.crash_lag.auto_catch_up else None,
        "sensor": settings.sensor,
        "checks": group_checks(asset),
        "table": settings.table,
        "windows": settings.windows,
        "resources": settings.resources,
    }
