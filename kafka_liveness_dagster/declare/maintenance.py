"""Which job and schedule maintain a declared asset's table?"""

# No `from __future__ import annotations` here: Dagster compares the annotation of an op's context with the class.

import dagster as dg

from kafka_liveness_dagster.lanes.maintenance import run_maintenance
from kafka_liveness_dagster.settings.declarations import KafkaAssetSettings


def maintenance_of(settings: KafkaAssetSettings) -> dg.ScheduleDefinition:
    """The schedule, with its job."""
    keys, told = settings.resources, settings.maintenance

    @dg.op(name=f"maintain_{settings.identifier}", required_resource_keys={keys.kafka, keys.spark})
    def maintain(context: dg.OpExecutionContext) -> None:
        run_maintenance(settings, context)

    @dg.job(
        name=f"{settings.identifier}_maintenance_job",
        description=f"Keeps table {settings.table} small: compacts files, expires snapshots, deletes what nobody has. "
        "What either lane may write again is left as it is, and a commit of theirs always comes first.",
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
