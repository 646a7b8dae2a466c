"""Read the selected steps and partitions of a run that matter to a lane. Never changes a run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.runs.storage import call_with_retries
from kafka_liveness_dagster.runs.tags import BACKFILL_TAG, DATA_STATE_AT_START, op_context_of

if TYPE_CHECKING:
    from collections.abc import Collection

    import dagster as dg


class PartitionRequiredError(KafkaLivenessError):
    """A run without a partition selects an asset that processes partitions; nothing was read or written."""


def has_dependents(context: dg.AssetExecutionContext) -> bool:
    """Return whether steps of the run's job depend on the output of this one."""
    step = op_context_of(context).op_handle.name
    inputs = context.job_def.dependency_structure.output_to_downstream_inputs_for_node(step)
    return any(inputs.values())


def materializes(context: dg.AssetExecutionContext, key: dg.AssetKey) -> bool:
    """Return whether this run, or the backfill that started it, materializes an asset.

    Dagster's *Materialize all* creates a backfill of all assets, with one run or more for each of them.
    """
    backfill_id = context.run.tags.get(BACKFILL_TAG)
    ask = partial(context.instance.get_backfill, backfill_id or "")
    backfill = call_with_retries(ask, "the backfill of the run", DATA_STATE_AT_START) if backfill_id else None
    of_backfill = (backfill.asset_selection if backfill else None) or ()
    return key in {*context.job_def.asset_layer.selected_asset_keys, *of_backfill}


def require_partition(context: dg.AssetExecutionContext, partitioned: Collection[dg.AssetKey]) -> None:
    """Refuse a run that selects one of these assets and has no partition.

    Raises:
        PartitionRequiredError: the run selects one and has no partition.
    """
    if context.has_partition_key or context.has_partition_key_range:
        return
    selected = sorted(
        key.to_user_string() for key in context.job_def.asset_layer.selected_asset_keys & {*partitioned}
    )
    if selected:
        raise PartitionRequiredError(
            f"Job {context.run.job_name} selects {' and '.join(selected)}, but this run has no "
            "partition. Nothing was read or written. Fix: select a partition when you launch the run, "
            f"or remove {' and '.join(selected)} from the job's selection and use its own job or "
            "backfill"
        )
