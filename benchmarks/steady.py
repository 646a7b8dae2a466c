"""Records at a steady rate; the offset alone gives the time at which a record was produced.

Kafka is not queried for it. Each twentieth of a second every partition gets the same number of records, from
the only producer of the topic.
"""

from __future__ import annotations

import threading
import time
from itertools import count
from typing import TYPE_CHECKING

from confluent_kafka import Producer

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_EVERY_SECONDS = 0.05
_PATIENCE_SECONDS = 60


class Steady:
    """About ``rate`` records of 100 bytes a second in an empty topic, to the block's end or ``stop``."""

    def __init__(self, servers: str, topic: str, partitions: int, rate: int) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0})
        self._topic, self._partitions = topic, partitions
        self._each = max(1, round(rate * _EVERY_SECONDS / partitions))
        self._produced_at: list[float] = []  # each offset of a turn has its moment, in every partition
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steady", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def produced(self) -> int:
        """How many records so far."""
        return len(self._produced_at) * self._each * self._partitions

    def produced_at(self, offset: int) -> float:
        """When the record with this offset was produced, in any partition; of the next one: now."""
        turn = offset // self._each
        return self._produced_at[turn] if turn < len(self._produced_at) else time.time()

    def stop(self) -> None:
        """No more of them; all are in the log.

        Raises:
            RuntimeError: they are not.
        """
        self._stop.set()
        self._thread.join(_PATIENCE_SECONDS)
        if left := self._producer.flush(_PATIENCE_SECONDS):
            raise RuntimeError(
                f"{left} records were not produced within {_PATIENCE_SECONDS} s: is the broker well?"
            )

    def _run(self) -> None:
        began = time.monotonic()
        for turn in count(1):
            at = time.time()
            self._produced_at.append(at)
            for number in range(self._each):
                note = "steady " * 8
                told = f'{{"turn": {turn}, "number": {number}, "at": {at:.3f}, "note": "{note}"}}'.encode()
                for partition in range(self._partitions):
                    self._producer.produce(self._topic, told, partition=partition, timestamp=int(at * 1000))
            self._producer.poll(0)
            if self._stop.wait(max(0.0, began + turn * _EVERY_SECONDS - time.monotonic())):
                return
