"""Which assets, jobs and sensor does one declared Kafka asset give? Builds them; decides nothing about data."""

# No `from __future__ import annotations` here: Dagster compares the annotation of an op's context with the class.

import gc
import warnings
import weakref
from collections.abc import Container, Iterator
from functools import cached_property
from typing import Any, cast

import dagster as dg

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.declare.maintenance import maintenance_of
from kafka_liveness_dagster.lanes.lanes import run_catch_up, run_live
from kafka_liveness_dagster.runs.tags import MAX_BATCH_SECONDS, lane_tags
from kafka_liveness_dagster.sensor.checks import GroupChecks
from kafka_liveness_dagster.sensor.observations import topic_key
from kafka_liveness_dagster.sensor.sensor import build_group_sensor
from kafka_liveness_dagster.settings.declarations import KafkaAssetSettings

_owners: "weakref.WeakValueDictionary[tuple[str, str], KafkaAsset]" = weakref.WeakValueDictionary()


class KafkaAsset:
    """A Kafka topic on its way into a table: what ``@kafka_asset`` makes of a function.

    Put ``definitions`` into your code location, or pick single parts: ``live``, ``crash_lag``, ``live_job``,
    ``crash_lag_job``, ``checks``, ``checks_job``, ``maintenance``, ``sensor``. ``settings`` is what was declared of it.
    """

    def __init__(self, settings: KafkaAssetSettings) -> None:
        self.settings = settings

    @property
    def name(self) -> str:
        """Of the live asset."""
        return self.settings.name

    @property
    def group_id(self) -> str:
        """The consumer group of the live lane."""
        return self.settings.group_id

    @property
    def topics(self) -> tuple[str, ...]:
        """What the group subscribes to."""
        return self.settings.topics

    @property
    def target(self) -> str:
        """Where the rows go: the table's name, or the sink's."""
        return self.settings.target

    @property
    def definitions(self) -> dg.Definitions:
        """All parts, ready for ``Definitions.merge``; the resources are yours to give."""
        return self.definitions_beside(())

    def definitions_beside(self, declared: Container[str]) -> dg.Definitions:
        """All parts but the assets of these topics, which something else in the code location declares.

        Raises:
            InvalidSettingError: another asset of this process has the same group.
        """
        self._take_group()
        topics = [spec for topic, spec in zip(self.topics, self._topics, strict=True) if topic not in declared]
        return dg.Definitions(
            assets=[*topics, self.live, self.crash_lag],
            asset_checks=[self.checks],
            jobs=[self.live_job, self.crash_lag_job, self.checks_job],
            schedules=[self.maintenance] if self.maintenance else [],
            sensors=[self.sensor],
        )

    def _take_group(self) -> None:
        """A group's commits are one asset's: two would share its partitions, and each would have half of the rows."""
        if self._rival() is not None:
            gc.collect()  # one that was declared before the code was loaded again may only seem to be there
        if (owner := self._rival()) is not None:
            raise InvalidSettingError(
                f"group_id of asset {self.name} is {self.group_id!r}, which asset {owner.name} has too: "
                f"{self.target} and {owner.target} would get the records of half of the partitions each. Give each "
                "asset a group of its own; more runs of one asset are max_live_runs of watch"
            )
        _owners[self.settings.resources.kafka, self.group_id] = self

    def _rival(self) -> "KafkaAsset | None":
        """Another asset that took the group."""
        owner = _owners.get((self.settings.resources.kafka, self.group_id))
        return None if owner is None or owner.name == self.name else owner

    @cached_property
    def live(self) -> dg.AssetsDefinition:
        """The asset of the live lane: one run processes batches until no new data comes."""

        def live(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
            if (told := run_live(self.settings, context)) is not None:  # else all was told while it went on
                yield told

        doc = self.settings.transform.__doc__
        make = dg.asset(name=self.name, description=doc, output_required=False, **self._shared())
        return cast("dg.AssetsDefinition", make(live))

    @cached_property
    def crash_lag(self) -> dg.AssetsDefinition:
        """The partitioned asset of the catch-up lane: its partitions are the crash lag ranges."""

        def crash_lag(context: dg.AssetExecutionContext) -> None:
            run_catch_up(self.settings, context)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)  # backfill_policy: our choice, unless the user made one
            make = dg.asset(
                name=self.settings.crash_lag_key.path[-1],
                description=self._why_crash_lag,
                partitions_def=dg.DynamicPartitionsDefinition(name=f"{self.name}_crash_lag"),
                backfill_policy=self.settings.crash_lag.backfill_policy or dg.BackfillPolicy.single_run(),
                pool=f"{self.name}_crash_lag",  # a backfill's runs carry no tags to limit them by
                **self._shared(),
            )
            return cast("dg.AssetsDefinition", make(crash_lag))

    @cached_property
    def live_job(self) -> Any:
        """Materialises ``live``; the sensor starts it."""
        return self._job(self.live, lane_tags(self.group_id, "live"))

    @cached_property
    def crash_lag_job(self) -> Any:
        """Materialises partitions of ``crash_lag``."""
        return self._job(self.crash_lag, lane_tags(self.group_id, "catch-up"))

    @cached_property
    def checks(self) -> dg.AssetChecksDefinition:
        """Whether the group is read, near the log end, caught up, ahead of the broker's retention, and exact."""
        keys = self.settings.resources
        return self._group_checks.definition(f"{self.name}_checks", keys.kafka, keys.spark)

    @cached_property
    def checks_job(self) -> Any:
        """Evaluates ``checks``, for a schedule of your own; the sensor does so without it."""
        selection = dg.AssetSelection.checks(self.checks)
        return dg.define_asset_job(f"{self.name}_checks_job", selection, executor_def=dg.in_process_executor)

    @cached_property
    def maintenance(self) -> dg.ScheduleDefinition | None:
        """Keeps the table small, when it is switched on; None where there is no table."""
        return maintenance_of(self.settings) if self.settings.table else None

    @cached_property
    def sensor(self) -> dg.SensorDefinition:
        """Watches the consumer group: see :func:`build_group_sensor`."""
        return build_group_sensor(
            name=f"{self.name}_group",
            group_id=self.group_id,
            topics=self.topics,
            live_job=self.live_job,
            crash_lag=self.crash_lag,
            crash_lag_job=self.crash_lag_job if self.settings.crash_lag.auto_catch_up else None,
            watch=self.settings.watch,
            checks=self._group_checks,
            table=self.settings.table,
            resources=self.settings.resources,
        )

    @property
    def _group_checks(self) -> GroupChecks:
        return GroupChecks(
            group_id=self.group_id,
            topics=self.topics,
            live=self.live.key,
            crash_lag=self.crash_lag.key,
            partitions_name=f"{self.name}_crash_lag",
            max_lag=self.settings.watch.max_lag,
            max_crash_lag_age_seconds=self.settings.crash_lag.max_age_seconds,
            max_poll_records=self.settings.most_records,
            max_live_runs=self.settings.watch.max_live_runs,
            ghost_after_seconds=self.settings.watch.ghost_after_seconds,
            table=self.settings.table,
        )

    @property
    def _why_crash_lag(self) -> str:
        """Markdown, beside the partitions: what they are, and what to click."""
        return (
            f"Offset ranges that the live lane of {self.name} jumped over after a crash, as topic:partition:start-end "
            f"without the end offset. What is missing here is missing in {self.target}.\n\n"
            "- **To process them:** *Materialize…*, *Missing*, *Launch*; in any order, while new data goes on.\n"
            "- **Why one is missing:** its event in the *Events* tab.\n"
            f"- **Who adds partitions:** the sensor `{self.name}_group`, nobody else."
        )

    @property
    def _topics(self) -> list[dg.AssetSpec]:
        # the same for every group that reads the topic, or Dagster could not merge their definitions
        told = "Kafka topic; its events show the consumer groups that read it: members, lag, departures"
        return [dg.AssetSpec(key, description=told, kinds={"kafka"}) for key in self._topic_keys]

    @property
    def _topic_keys(self) -> list[dg.AssetKey]:
        return [topic_key(topic) for topic in self.topics]

    def _shared(self) -> dict[str, Any]:
        """What both assets are told alike."""
        # The budget is asset metadata since a backfill's run carries no op tags
        budget = {} if self.settings.max_batch_seconds is None else {MAX_BATCH_SECONDS: self.settings.max_batch_seconds}
        return {
            "deps": self._topic_keys,
            "group_name": self.settings.group_name,
            "kinds": {"kafka", "spark", *(["iceberg"] if self.settings.table else [])},
            "required_resource_keys": {self.settings.resources.kafka, self.settings.resources.spark},
            "metadata": {"group": self.group_id, **self._links, **self._query, **budget},
        }

    @property
    def _links(self) -> dict[str, Any]:
        """Where the records come from and the rows go to; the catalog's own name for a table makes Dagster show it."""
        topics = {f"topic {topic}": dg.MetadataValue.asset(topic_key(topic)) for topic in self.topics}
        table = self.settings.table
        to = {"table": table, "dagster/table_name": table} if table else {"sink": self.target}
        return {**topics, **to}

    @property
    def _query(self) -> dict[str, Any]:
        sql = getattr(self.settings.transform, "sql", None)  # of a component's
        return {"sql": dg.MetadataValue.md(f"```sql\n{sql}\n```")} if isinstance(sql, str) else {}

    def _job(self, asset: dg.AssetsDefinition, tags: dict[str, str]) -> Any:
        """One process per run: the multiprocess executor leaves a step at work when its run worker is killed."""
        return dg.define_asset_job(
            f"{asset.key.path[-1]}_job",
            selection=dg.AssetSelection.assets(asset.key).without_checks(),  # the sensor tells them all the time
            executor_def=dg.in_process_executor,
            tags=tags,
        )
