"""Replace the product's clients, Spark, threads and clock by simulated ones.

Everything else is the product's own code, as it is installed.
"""

from __future__ import annotations

import concurrent.futures._base as futures
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from greenlet import getcurrent
from pyspark.sql.connect.session import SparkSession as ConnectSession

from kafka_liveness_dagster import concurrency
from kafka_liveness_dagster.core import ledger as core_ledger
from kafka_liveness_dagster.core.commit_metadata import CATCH_UP_SUFFIX
from kafka_liveness_dagster.kafka import admin, committer, run_context, watchdog
from kafka_liveness_dagster.kafka.catch_up import commit_log
from kafka_liveness_dagster.kafka.errors import ErrorListener
from kafka_liveness_dagster.kafka.live import assignment, consumer, data_listener, member, planner, session
from kafka_liveness_dagster.lanes import assignment_wait, batch_reporting, in_flight, pipeline, runs
from kafka_liveness_dagster.spark import transform
from kafka_liveness_dagster.spark.connect import job
from kafka_liveness_dagster.spark.table import ledger, table, write
from tests.simulation import spark
from tests.simulation.broker import Admin, Committer
from tests.simulation.client import MemberClient
from tests.simulation.scheduler import Killed, clock
from tests.simulation.threads import threading, time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHECK_SECONDS = 0.5
_ADMIN = Admin()
_SLOW_LOG_SECONDS = 4.0


def _create_client(_kind: object, config: dict[str, Any]) -> Any:
    group_id = config["group.id"]
    return Committer(group_id) if group_id.endswith(CATCH_UP_SUFFIX) else MemberClient(config)


class Log:
    """Of a run, or of a module: told to the history. Its handlers may be slow."""

    def debug(self, *_: object, **__: object) -> None:
        """Nobody reads that."""

    def info(self, text: str, *told: object) -> None:
        """Tell."""
        me: Any = getcurrent()
        if me.process.dead:
            raise Killed
        me.process.world.on_log_line(me.process, text, told)

    def warning(self, text: str, *told: object, **_: object) -> None:
        """Tell, slowly at times."""
        self.info(text, *told)
        me: Any = getcurrent()
        if me.process.world.chance(me.process.world.scenario.slow_logs):
            seconds = _SLOW_LOG_SECONDS * clock.rng.random()
            me.process.held_up_at = clock.now + seconds
            clock.block(seconds)

    error = exception = warning

    def log(self, _level: int, text: str, *told: object) -> None:
        """Tell."""
        self.warning(text, *told)


def _run_in_caller(call: Callable[[], Any], _name: str) -> Future[Any]:
    answer: Future[Any] = Future()
    try:
        answer.set_result(call())
    except KafkaException as error:
        answer.set_exception(error)
    return answer


def _getppid() -> int:
    me: Any = getcurrent()
    return int(me.process.parent)


class NoQuota(nullcontext[Any]):
    """No broker here throttles anybody, and no thread asks."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__(self)

    def describe_for(self, _batch: object) -> str:
        """Nothing to say."""
        return ""


LOG: Any = Log()
_OS = SimpleNamespace(getppid=_getppid)
_MULTIPROCESSING = SimpleNamespace(parent_process=lambda: None)
_decoded = lru_cache(4_096)(core_ledger.decode_entries)
_FITS = SimpleNamespace(changes_table=False)
_SEAMS: list[tuple[Any, str, Any]] = [
    *(
        (module, "time", time)
        for module in (admin, consumer, member, in_flight, write, job, ledger, run_context, planner)
    ),
    *(
        (module, "time", time)
        for module in (batch_reporting, runs, data_listener, member, assignment, assignment_wait)
    ),
    *((module, "threading", threading) for module in (concurrency, futures, job, member, watchdog)),
    *((module, "create_client", _create_client) for module in (member, commit_log)),
    (admin, "admin_client", lambda settings: (_ADMIN, ErrorListener(settings))),
    # No simulated broker is silent, so a commit needs no thread of its own
    (committer, "run_in_daemon_thread", _run_in_caller),
    (admin, "commit_reader", lambda group_id, _settings: Committer(group_id)),
    (session, "POLL_SECONDS", 0.5),
    (consumer, "REFRESH_SECONDS", 0.5),
    *((data_listener, name, 0.5) for name in ("REFRESH_SECONDS", "LISTENING_REFRESH_SECONDS")),
    (data_listener, "CAUGHT_UP_SECONDS", 0.5),
    (in_flight, "log", LOG),
    (in_flight, "POLL_SECONDS", 0.3),
    (watchdog, "CHECK_SECONDS", CHECK_SECONDS),
    (watchdog, "RUN_STATE_SECONDS", 1.5),
    (watchdog, "log", LOG),
    (watchdog, "os", _OS),
    (watchdog, "multiprocessing", _MULTIPROCESSING),
    (planner, "PRUNE_INTERVAL_SECONDS", 3.0),
    (write, "require_row_columns", lambda *_: None),
    (write, "diff_schema", lambda *_: _FITS),
    (write, "require_rows_in_ranges", lambda frame, _ranges: frame),
    (write, "schema", SimpleNamespace(with_missing_columns=lambda frame, _found: frame, allows_fanout=bool)),
    (write, "with_sums", lambda frame: (frame, frame)),
    (
        write,
        "commits",
        SimpleNamespace(overwrite=spark.overwrite, Merge=lambda *_, **__: None, ATTEMPT="attempt"),
    ),
    (write, "row_count", lambda frame, *_: sum(r.size for r in frame.ranges)),
    (core_ledger, "decode_entries", _decoded),  # the same texts, again and again
    (table, "IcebergTable", spark.SeenTable),
    (transform, "TransformedBatch", spark.Frame),
    (pipeline, "ThrottlingWatch", NoQuota),
    # All simulated threads are one thread: what it holds of theirs would outlive them.
    (ConnectSession, "_active_session", SimpleNamespace()),
]


@contextmanager
def simulated() -> Iterator[None]:
    """The product with its seams as they are here; once for many histories, for it costs as much as one."""
    was = [(where, name, getattr(where, name)) for where, name, _ in _SEAMS]
    for where, name, what in _SEAMS:
        setattr(where, name, what)
    try:
        yield
    finally:
        for where, name, what in was:
            setattr(where, name, what)
