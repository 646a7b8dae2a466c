"""Small batches of another group on the same Spark server: how much slower are they beside a large read?"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.lake import fill, new_topic, to_rows
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.embedded.services import running_services
from kafka_liveness_dagster.spark.connect.session import connect
from kafka_liveness_dagster.spark.source import read_ranges
from kafka_liveness_dagster.spark.table.write import write_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.lake import Lake

_PARTITIONS, _EACH, _BATCHES = 8, 100, 400
RECORDS = _PARTITIONS * _EACH


class Neighbor:
    """A group that writes batches of ``RECORDS`` records, in a session and a table of its own."""

    def __init__(self, services: Lake) -> None:
        self._options = services.kafka.settings().spark_options()
        self._topic, self._table = new_topic(services.servers, _PARTITIONS), services.new_table()
        fill(services.servers, self._topic, _PARTITIONS, RECORDS * _BATCHES)
        found = running_services()
        assert found is not None  # noqa: S101 - the benchmark has started them
        self._session = connect(found.spark_remote)
        self._done = 0

    def batch(self) -> float:
        """Write the next batch; seconds."""
        at = self._done * _EACH
        self._done += 1
        ranges = [OffsetRange(self._topic, one, at, at + _EACH) for one in range(_PARTITIONS)]
        began = time.perf_counter()
        write_table(
            self._session,
            self._table.name,
            ranges,
            lambda: to_rows(read_ranges(self._session, ranges, self._options)),
        )
        return time.perf_counter() - began

    @contextmanager
    def at_work(self) -> Iterator[list[float]]:
        """Write batches without a pause during the block; the list has the seconds of each after it."""
        seconds: list[float] = []
        stopped = threading.Event()

        def work() -> None:
            while not stopped.is_set():
                seconds.append(self.batch())

        thread = threading.Thread(target=work, name="neighbor")
        thread.start()
        try:
            yield seconds
        finally:
            stopped.set()
            thread.join()

    def close(self) -> None:
        """End the session."""
        self._session.stop()
