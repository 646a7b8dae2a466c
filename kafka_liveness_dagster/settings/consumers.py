"""Declare and check the settings of one consumer of either lane. Builds nothing."""

# No `from __future__ import annotations` here: pydantic reads the annotations.

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, ClassVar

from kafka_liveness_dagster.core.names import join_some
from kafka_liveness_dagster.settings import types
from kafka_liveness_dagster.settings.groups import Batching, CrashLag, Membership, Offsets
from kafka_liveness_dagster.settings.validation import ValidatedSettings


class ConsumerSettings(ValidatedSettings):
    """The settings of a consumer of the live lane: see :meth:`KafkaLivenessResource.consumer`."""

    title: ClassVar[str] = "the consumer of group"
    name_field: ClassVar[str] = "group_id"
    used_fields: ClassVar[Mapping[str, Collection[str]]] = {
        "batching": ("allocation",),
        "crash_lag": ("min_offsets", "max_ranges"),
    }

    topics: types.Topics
    group_id: types.GroupId
    max_poll_records: types.Count | None
    max_batch_seconds: types.Budget | None
    enable_parallel_rebalance: types.Flag
    batching: Annotated[Batching, types.INSTANCE]
    crash_lag: Annotated[CrashLag, types.INSTANCE]
    offsets: Annotated[Offsets, types.INSTANCE]
    membership: Annotated[Membership, types.INSTANCE]


class CatchUpSettings(ValidatedSettings):
    """The settings of a consumer of the catch-up lane: see :meth:`KafkaLivenessResource.catch_up`."""

    title: ClassVar[str] = "the catch-up of group"
    name_field: ClassVar[str] = "group_id"
    used_fields: ClassVar[Mapping[str, Collection[str]]] = {"offsets": ("on_data_loss",)}

    group_id: types.GroupId
    ranges: types.Ranges
    reprocess: types.Ranges
    max_poll_records: types.Count
    max_batch_seconds: types.Budget | None
    offsets: Annotated[Offsets, types.INSTANCE]

    def contradictions(self) -> Iterator[str]:
        """Yield an error for each combination of valid settings that no run can work with."""
        if strange := [one for one in self.reprocess if one not in self.ranges]:
            named = join_some(strange)
            yield (
                f"reprocess of the catch-up of group {self.group_id} has {named}, which ranges lacks. Fix: "
                "add the same ranges to ranges"
            )
