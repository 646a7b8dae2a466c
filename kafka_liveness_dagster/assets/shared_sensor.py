"""Build one sensor for the groups of several Kafka assets, instead of a sensor for each asset.

Never reads Kafka: the sensor does.
"""

# No `from __future__ import annotations` here: pydantic reads the annotations.

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

import dagster as dg
from pydantic import BeforeValidator, InstanceOf

from kafka_liveness_dagster.assets.definitions import KafkaAsset, sensor_arguments
from kafka_liveness_dagster.assets.owners import claim_for_shared_sensor
from kafka_liveness_dagster.core.names import display, join_some
from kafka_liveness_dagster.sensor.kept_instance import KeptInstanceSensor
from kafka_liveness_dagster.sensor.sensor import GroupSensor
from kafka_liveness_dagster.sensor.shared import SharedSensor
from kafka_liveness_dagster.settings import types
from kafka_liveness_dagster.settings.groups import Sensor
from kafka_liveness_dagster.settings.validation import ValidatedSettings, validated

_OWN_SENSOR_ONLY = ("minimum_interval_seconds", "default_status")
_DEFAULT = Sensor()
KafkaAssets = Annotated[
    tuple[Annotated[InstanceOf[KafkaAsset], types.Constraint("an asset of kafka_asset")], ...],
    BeforeValidator(types.as_tuple),
    types.Constraint("at least one asset of kafka_asset, and each once", lambda given: len(given) > 0),
]


class SharedSensorSettings(ValidatedSettings):
    """The settings of a sensor for several groups, those of :func:`build_shared_sensor`."""

    title: ClassVar[str] = "shared sensor"
    name_field: ClassVar[str] = "name"

    assets: KafkaAssets
    name: types.SensorName
    minimum_interval_seconds: types.Count
    default_status: types.SensorStatus

    def contradictions(self) -> Iterator[str]:
        """Yield a message for assets that one sensor cannot watch together."""
        names = [asset.identifier for asset in self.assets]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            yield f"assets of shared sensor {self.name} has {join_some(twice)} twice. Fix: leave one out"
        keys = sorted({asset.settings.resources.kafka for asset in self.assets})
        if len(keys) > 1:
            yield (
                f"assets of shared sensor {self.name} have {len(keys)} Kafka resources, {join_some(keys)}. "
                "Its ticks read one cluster. Fix: build one shared sensor for the assets of each resource"
            )
        for asset in self.assets:
            for setting, value in asset.settings.sensor.non_defaults().items():
                if setting in _OWN_SENSOR_ONLY:
                    yield (
                        f"{setting} of sensor has no effect on asset {asset.identifier}, which shared sensor "
                        f"{self.name} watches. Fix: leave {setting}={display(value)} out, and set it in "
                        "build_shared_sensor"
                    )


@validated(SharedSensorSettings)
def build_shared_sensor(
    assets: Sequence[KafkaAsset],
    *,
    name: str,
    minimum_interval_seconds: int = _DEFAULT.minimum_interval_seconds,
    default_status: dg.DefaultSensorStatus = _DEFAULT.default_status,
) -> dg.SensorDefinition:
    """Return one sensor for the groups of these assets, in place of their own sensors.

    A tick reads the cluster once for all groups. A group without a change costs almost nothing. The error of
    one group is logged, and the other groups go on. From then on ``definitions`` of these assets have no
    sensor, so build this sensor before you read them.

    Args:
        assets: assets of ``kafka_asset`` with the same Kafka resource.
        name: name of the sensor.
        minimum_interval_seconds: shortest time between two ticks.
        default_status: ``RUNNING`` starts the sensor with the code location.

    Raises:
        InvalidSettingError: the assets have different Kafka resources, or one has a sensor already.
    """
    claim_for_shared_sensor(assets, name)
    groups = [
        # The group is part of the run keys: two groups may have the same event at the same time
        GroupSensor.of(**sensor_arguments(asset), name=name, run_key_prefix=f"{name} {asset.group_id}")
        for asset in assets
    ]
    shared = SharedSensor(groups)
    kafka_key = assets[0].settings.resources.kafka
    jobs = {job.name: job for group in groups for job in group.jobs}

    def shared_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        return shared.evaluate(context, getattr(context.resources, kafka_key))

    return KeptInstanceSensor(
        name=name,
        evaluation_fn=shared_sensor,
        jobs=list(jobs.values()),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={key for group in groups for key in group.resource_keys},
        description=(
            f"Watches {len(groups)} consumer groups: starts live runs, and adds pending ranges as partitions."
        ),
    )
