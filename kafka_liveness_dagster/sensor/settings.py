"""What was declared of a group's sensor, and could it work with it? Builds nothing."""

# No `from __future__ import annotations` here: pydantic reads the annotations.

from typing import Annotated, ClassVar

from pydantic import InstanceOf

from kafka_liveness_dagster.sensor.checks import GroupChecks
from kafka_liveness_dagster.settings import kinds
from kafka_liveness_dagster.settings.declared import Declared


class SensorSettings(Declared):
    """The settings of one group sensor, those of :func:`build_group_sensor`."""

    of: ClassVar[str] = "sensor"
    named_by: ClassVar[str] = "name"

    name: kinds.SensorName
    group_id: kinds.GroupId
    topics: kinds.OwedTopics
    live_job: kinds.Job
    crash_lag: kinds.CrashLag
    crash_lag_job: kinds.Job | None
    max_live_runs: kinds.Count
    ghost_after_seconds: kinds.Seconds
    fail_ghost_runs: kinds.Flag
    on_event: kinds.Called | None
    event_jobs: kinds.Jobs
    checks: Annotated[InstanceOf[GroupChecks], kinds.Wanted("GroupChecks")] | None
    minimum_interval_seconds: kinds.Count
    default_status: kinds.SensorStatus
    kafka_resource_key: kinds.ResourceKey
    table: kinds.Table | None
    spark_resource_key: kinds.ResourceKey
