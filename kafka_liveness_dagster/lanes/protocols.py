"""What does the pipeline need of a lane, and where do its batches come from?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition


Transform: TypeAlias = "Callable[[DataFrame], DataFrame]"
"""From the records of a batch to the rows to keep."""


class Lane(Protocol):
    """What both lanes can do with a batch: ``LivenessConsumer`` and ``CatchUpConsumer``."""

    def commit(self, batch: Batch) -> tuple[TopicPartition, ...]: ...  # noqa: D102 - the two classes document it
    def require_room(self, batch: Batch) -> None: ...  # noqa: D102
    def confirm(self, batch: Batch) -> None: ...  # noqa: D102
    def check(self) -> None: ...  # noqa: D102
    def check_batch(self, batch: Batch) -> None: ...  # noqa: D102
    def heartbeat(self) -> None: ...  # noqa: D102
    def quarantine(self, poison: OffsetRange) -> None: ...  # noqa: D102
    def replan(self) -> None: ...  # noqa: D102
    def is_batch_current(self, batch: Batch) -> bool: ...  # noqa: D102
    def on_fence(self, cancel: Callable[[], None]) -> None: ...  # noqa: D102
    def before_revoke(self, callback: Callable[[Callable[[], None]], None]) -> None: ...  # noqa: D102
    def on_recovered(  # noqa: D102
        self, callback: Callable[[Sequence[OffsetRange], Sequence[OffsetRange]], None]
    ) -> None: ...


class OnSkipped(Protocol):
    """Who is told of offsets that were passed and are pending."""

    def __call__(self, offsets: OffsetRange, why: str, cause: str, /) -> None:
        """Neighbours of one partition; ``why`` in a sentence or two, the ``cause`` in a few words."""


class BatchCounter(Protocol):
    """Who is told each batch that is committed."""

    def add(self, batch: Batch, rows: int | None, seconds: float) -> None:
        """So many rows of it, None where nobody counts, in so many seconds.

        Maybe in the middle of a rebalance.
        """


class BatchSource(Protocol):
    """Where batches come from."""

    def __call__(self, max_records: int, *, ahead: bool) -> Batch | None:
        """The next batch, None at the end.

        ``ahead`` of one that is in flight: only if it is worth it, at once.
        """
