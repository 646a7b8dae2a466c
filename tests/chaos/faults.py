"""What is done to the pipeline, and how soon each partition has to be fresh again after it.

Each bound is a sum of what has to happen, one after the other, in the worst case; counted from the moment in
which everything that was taken away is there again. What is work takes longer on a machine that has other
work.
"""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

import psutil
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from pyspark.errors import PySparkException

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.partition_state import GroupMismatchError
from kafka_liveness_dagster.spark.connect.session import close, connect
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from kafka_liveness_dagster.spark.table.table import IcebergTable
from tests.chaos.orders import BUDGET, GROUP, SESSION, TABLE

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK = 10.0
"""The sensor looks every 5 s, and its daemon goes round every 5 s."""
START = 10.0
"""From the request of a run to its first poll; 4 to 6 s on an idle machine."""
BATCH = 5.0
"""A batch; 1 s on an idle machine."""
COLD = 15.0
"""What the first batches of a Spark server take longer."""
OUT = 30.0
"""A run whose Spark is silent ends by itself so long after its budget."""
AGAIN = 25.0
"""Dagster's processes start and load the code location."""
RUN_WAITS, RUN_WORKS = SESSION + LOOK, START + BATCH
"""A run is gone: its session ends, the sensor sees it, the next one starts and does a batch."""


class Fault(NamedTuple):
    """One kind of harm.

    ``waits`` are as long on every machine, ``works`` is for two cores that have nothing else to do.
    ``seconds`` are between what is taken away and its return; ``strike(stage, seconds, lot)`` returns then,
    with what it did, or with nothing if there was nobody to do it to. ``lot`` in [0, 1) chooses whom.
    """

    name: str
    waits: float
    works: float
    why: str
    seconds: tuple[float, float]
    strike: Callable[..., str]

    def bound(self, slow):
        """So many seconds at most, on a machine that is so many times as slow."""
        return self.waits + slow * self.works


def _victim(stage, lot, *jobs, patience=60.0):
    """A process that works for one of the jobs: the run's id and the process."""
    give_up_at = time.monotonic() + patience
    while not (found := list(stage.workers(*jobs).items())):
        if time.monotonic() > give_up_at:
            return None
        time.sleep(0.2)
    return found[int(lot * len(found))]


def _sent(send):
    """Send a signal to a process; return False where it has ended by itself meanwhile."""
    try:
        send()
    except psutil.NoSuchProcess:
        return False
    return True


def _kill_run(stage, seconds, lot):
    victim = _victim(stage, lot, "orders_job")
    if victim is None or not _sent(victim[1].kill):
        return ""
    return f"SIGKILL of live run {victim[0][:8]}"


def _stop_run(stage, seconds, lot):
    victim = _victim(stage, lot, "orders_job")
    if victim is None or not _sent(victim[1].suspend):
        return ""
    time.sleep(seconds)
    _sent(victim[1].resume)  # Dagster may have killed it meanwhile
    return f"SIGSTOP of live run {victim[0][:8]} for {seconds:.0f} s"


def _kill_backfill(stage, seconds, lot):
    """A backfill of all that is missing, its worker killed as soon as it is at work."""
    count = stage.backfill()
    victim = _victim(stage, lot, "orders_crash_lag_job", "orders_crash_lag", patience=150.0 if count else 0.0)
    if victim is None:
        return ""
    time.sleep(seconds)
    if not _sent(victim[1].kill):
        return ""
    return f"backfill of {count} partitions, SIGKILL of its run {victim[0][:8]}"


def _restart_broker(how):
    def strike(stage, seconds, lot):
        stage.broker.end(how)
        time.sleep(seconds)
        stage.broker.start()
        return f"{how.name} of the broker, {seconds:.0f} s down"

    return strike


def _kill_spark(stage, seconds, lot):
    stage.spark.kill()
    time.sleep(seconds)
    stage.spark.start()
    return f"SIGKILL of Spark, {seconds:.0f} s down"


def _silence(service, back):
    def strike(stage, seconds, lot):
        proxy = getattr(stage, service).proxy
        proxy.fall_silent()
        time.sleep(seconds)
        getattr(proxy, back)()
        told = "" if back == "resume" else ", its connections for good"
        return f"{service.capitalize()} silent for {seconds:.0f} s{told}"

    return strike


def _power_loss(stage, seconds, lot):
    stage.dev.power_loss()
    time.sleep(seconds)
    stage.dev.start()
    return f"SIGKILL of all of Dagster, {seconds:.0f} s down"


def _stray_commit(stage, seconds, lot):
    """What kcat with auto-commit, or a tool that resets all groups, leaves in the catch-up commit log."""
    offsets = [KafkaTopicPartition("orders", p, end) for p, end in stage.ends().items()]
    config = {"bootstrap.servers": stage.judged.bootstrap_servers, "group.id": f"{GROUP}.catch-up"}
    client = Consumer({**config, "enable.auto.commit": False})
    try:
        client.commit(offsets=offsets, asynchronous=False)
    finally:
        client.close()
    stage.history.file.append("external_commit", group=GROUP, log="catch-up")
    return f"external commit of the log ends in {GROUP}.catch-up"


def _call(stage, procedure, arguments):
    """Call a procedure of the table's catalog; return whether it was done."""
    catalog, _, name = TABLE.partition(".")
    session = connect(stage.judged.spark_remote, timeout_seconds=30.0)
    try:
        session.sql(f"CALL {catalog}.system.{procedure}(table => '{name}', {arguments})").collect()
    except PySparkException:  # a commit of the table was faster, or the snapshot has expired
        return False
    finally:
        close(session)
    return True


def _roll_back(stage, seconds, lot):
    ancestors = [entry.snapshot_id for entry in stage.load_table().history()]
    count = min(1 + int(3 * lot), len(ancestors) - 1)
    if count < 1:
        return ""
    reason = f"by {count} snapshots"
    stage.history.file.append("rolled_back", reason=reason)  # before and after: a read may begin in between
    if not _call(stage, "rollback_to_snapshot", f"snapshot_id => {ancestors[-1 - count]}"):
        return ""
    stage.history.file.append("rolled_back", reason=reason)
    return f"table rolled back by {count} snapshots"


def _expire(stage, seconds, lot):
    # Iceberg takes the moment as UTC; what is newer than it stays
    done = _call(stage, "expire_snapshots", "older_than => now(), retain_last => 1")
    return "all snapshots but the newest expired" if done else ""


def _another_group(stage, seconds, lot):
    """A test environment, say, that was pointed at this table."""
    group = f"{GROUP}-copy"
    session = connect(stage.judged.spark_remote, timeout_seconds=30.0)
    witness = TableLedger(IcebergTable(TABLE), lambda: session, group_id=group)
    kafka = kl.KafkaLivenessResource(
        bootstrap_servers=stage.judged.bootstrap_servers, group_protocol="classic"
    )
    try:
        with kafka.consumer(
            topics=["orders"], group_id=group, ledger=witness, max_batch_seconds=60
        ) as consumer:
            consumer.poll(30)
    except GroupMismatchError:
        return f"a run of group {group} was refused"
    finally:
        close(session)
    raise AssertionError(f"group {group} was not refused")


_RUN, _FOUND = (RUN_WAITS, RUN_WORKS), (RUN_WAITS + SESSION, RUN_WORKS)
_OVER, _COLD = (BUDGET + OUT + RUN_WAITS, RUN_WORKS), (RUN_WAITS, RUN_WORKS + COLD)
_NEXT = (RUN_WAITS, 2 * RUN_WORKS)
_SHORT, _LONG = (1, SESSION / 2), (SESSION + 4, 25)
FAULTS = (
    Fault("run killed", *_RUN, "session, look; start, batch", (0, 0), _kill_run),
    Fault("run stopped, shorter than its session", *_RUN, "as if it were killed", _SHORT, _stop_run),
    Fault("run stopped, longer than its session", *_RUN, "as if it were killed", _LONG, _stop_run),
    Fault("backfill killed", *_RUN, "the live lane does not notice", (0, 2), _kill_backfill),
    Fault(
        "broker killed",
        *_FOUND,
        "a session to be found again, a run",
        (0, 10),
        _restart_broker(signal.SIGKILL),
    ),
    Fault("broker restarted", *_FOUND, "the same", (0, 10), _restart_broker(signal.SIGTERM)),
    Fault("broker silent", *_FOUND, "the same", (3, 20), _silence("broker", "resume")),
    Fault(
        "broker's connections lost",
        *_OVER,
        "a batch that reads is over its budget",
        (3, 20),
        _silence("broker", "forget"),
    ),
    Fault("Spark killed", *_COLD, "a run, a cold server", (0, 10), _kill_spark),
    Fault(
        "Spark silent", *_OVER, "budget, 30 s until the run ends, a run", (3, 30), _silence("spark", "resume")
    ),
    Fault("Spark's connections lost", *_OVER, "the same", (3, 30), _silence("spark", "forget")),
    Fault("stray commit in the catch-up commit log", *_RUN, "a look; start, batch", (0, 0), _stray_commit),
    Fault(
        "table rolled back", *_NEXT, "the run fails, the next one finds the rows missing", (0, 0), _roll_back
    ),
    Fault("snapshots expired", *_RUN, "nothing is lost", (0, 0), _expire),
    Fault("another group at the table", *_RUN, "it is refused", (0, 0), _another_group),
    Fault("power lost", RUN_WAITS, RUN_WORKS + AGAIN, "Dagster starts, a run", (0, 5), _power_loss),
)


class Strike(NamedTuple):
    """One fault, with its chances drawn."""

    fault: Fault
    seconds: float
    lot: float
    pause: float


def strikes(seed):
    """Rounds without end; each has every fault, in an order of its own.

    >>> one, other = ([next(plan) for _ in range(5)] for plan in (strikes(7), strikes(7)))
    >>> one == other
    True
    """
    chance = random.Random(seed)  # noqa: S311 - nobody is to be kept from guessing it
    while True:
        for fault in chance.sample(FAULTS, len(FAULTS)):
            yield Strike(fault, chance.uniform(*fault.seconds), chance.random(), chance.uniform(1, 6))
