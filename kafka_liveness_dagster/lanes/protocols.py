"""Define the interfaces of lanes, batch sources and callbacks that the pipeline uses. Implements none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
    from kafka_liveness_dagster.core.record_reader import KafkaRecord


Transform: TypeAlias = "Callable[[DataFrame], DataFrame]"
"""A function from the records of a batch to the rows to keep."""


class Lane(Protocol):
    """The batch methods of both lanes: ``LivenessConsumer`` and ``CatchUpConsumer``."""

    def commit(self, batch: Batch) -> tuple[TopicPartition, ...]: ...  # noqa: D102 - the two classes document it
    def require_room(self, batch: Batch) -> None: ...  # noqa: D102
    def confirm(self, batch: Batch) -> None: ...  # noqa: D102
    def check(self) -> None: ...  # noqa: D102
    def check_batch(self, batch: Batch) -> None: ...  # noqa: D102
    def heartbeat(self) -> None: ...  # noqa: D102
    def records_within(  # noqa: D102
        self, batch: Batch, *, max_bytes: int, seconds: float
    ) -> list[KafkaRecord] | None: ...
    def release_records(self) -> None: ...  # noqa: D102
    def quarantine(self, poison: OffsetRange) -> None: ...  # noqa: D102
    def replan(self) -> None: ...  # noqa: D102
    def is_batch_current(self, batch: Batch) -> bool: ...  # noqa: D102
    def on_fence(self, cancel: Callable[[], None]) -> None: ...  # noqa: D102
    def before_revoke(self, callback: Callable[[Callable[[], None]], None]) -> None: ...  # noqa: D102
    def on_recovered(  # noqa: D102
        self, callback: Callable[[Sequence[OffsetRange], Sequence[OffsetRange]], None]
    ) -> None: ...


class OnSkipped(Protocol):
    """A callback for offsets that were passed and are pending."""

    def __call__(self, offsets: OffsetRange, why: str, cause: str, /) -> None:
        """Report adjacent offsets of one partition; ``why`` is a sentence or two, ``cause`` a few words."""


class BatchCounter(Protocol):
    """A counter of committed batches."""

    def add(self, batch: Batch, rows: int | None, seconds: float) -> None:
        """Count a committed batch; ``rows`` is None if they are not counted.

        A rebalance may be in progress.
        """


class BatchSource(Protocol):
    """A source of batches."""

    def __call__(self, max_records: int, *, ahead: bool) -> Batch | None:
        """Return the next batch; None at the end.

        With ``ahead`` another batch is in flight: return one only if it is worth it, without a wait.
        """
