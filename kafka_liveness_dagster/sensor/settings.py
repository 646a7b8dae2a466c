"""Check the declared settings of a group's sensor. Builds no sensor."""

# No `from __future__ import annotations` here: pydantic reads the annotations.

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import InstanceOf

from kafka_liveness_dagster.sensor.checks import GroupChecks
from kafka_liveness_dagster.settings import types
from kafka_liveness_dagster.settings.groups import ResourceKeys, Sensor
from kafka_liveness_dagster.settings.validation import ValidatedSettings
from kafka_liveness_dagster.settings.windows import Windows


class SensorSettings(ValidatedSettings):
    """The settings of one group sensor, those of :func:`build_group_sensor`."""

    title: ClassVar[str] = "sensor"
    name_field: ClassVar[str] = "name"

    name: types.SensorName
    group_id: types.GroupId
    topics: types.OwedTopics
    live_job: types.Job
    crash_lag: types.CrashLagAsset
    crash_lag_job: types.Job | None
    sensor: Annotated[Sensor, types.INSTANCE]
    checks: Annotated[InstanceOf[GroupChecks], types.Constraint("GroupChecks")] | None
    table: types.Table | None
    windows: Annotated[InstanceOf[Windows], types.Constraint("settings.windows.Windows")] | None
    resources: Annotated[ResourceKeys, types.INSTANCE]

    def contradictions(self) -> Iterator[str]:
        """Yield a message for a limit without a check, and for windows without a table."""
        if self.windows is not None and self.table is None:
            yield f"windows of sensor {self.name} need the table that has their rows: set table"
        most = self.sensor.max_lag
        if most is not None and (self.checks is None or self.checks.max_lag != most):
            yield (
                f"max_lag of sensor {self.name} would not be used, because its checks set it: leave "
                f"max_lag={most} out"
            )
