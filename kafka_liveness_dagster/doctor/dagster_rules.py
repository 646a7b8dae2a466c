"""Rules for a Dagster instance: it starts the next run soon after a crash, and has room for that run.

Facts have the names of the settings in ``dagster.yaml``, with dots. A missing setting has Dagster's default.
Queries nothing.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core.names import format_duration, join_some
from kafka_liveness_dagster.doctor.rules import FAIL, OK, WARN, CheckResult, Rule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_QUEUED = "QueuedRunCoordinator"
_DEFAULTS: Mapping[str, Any] = {
    "run_launcher.class": "DefaultRunLauncher",
    "run_coordinator.class": _QUEUED,
    "run_coordinator.config.dequeue_interval_seconds": 5,
    "run_monitoring.enabled": False,
    "run_monitoring.poll_interval_seconds": 120,
    "run_monitoring.max_runtime_seconds": 0,
    "run_monitoring.free_slots_after_run_end_seconds": 0,
    "run_retries.enabled": False,
    "run_retries.max_retries": 0,
    "concurrency.runs.max_concurrent_runs": 10,
    "concurrency.runs.tag_concurrency_limits": (),
    "concurrency.pools.granularity": "op",
    "storage.sqlite.base_dir": "",
    "sensors.use_threads": False,
    "retention.sensor.purge_after_days": {},
}
_DEQUEUE_SECONDS = 1
_POLL_SECONDS = 30
DAEMON_SECONDS = 5.0  # the period of the daemon's loop over its sensors
_DAEMON_IS_GONE_SECONDS = 300.0  # its heartbeats are 30 s apart
_LATE_PERIODS = 2.0  # in periods of the sensor
_STOPPED_PERIODS = 10.0
_LANE = "kafka_liveness/lane"
_GROUP = "kafka_liveness/group"


@dataclass(frozen=True)
class GroupSensorFacts:
    """The sensor of one consumer group in a code location.

    Attributes:
        is_on: whether it is switched on.
        interval_seconds: the configured period, at least the period of the daemon's loop.
        tick_period_seconds: the median period of its latest ticks; None with too few ticks.
        idle_seconds: seconds since its newest tick; None if it never ticked.
    """

    group_id: str
    name: str
    is_on: bool
    _: KW_ONLY
    interval_seconds: float
    tick_period_seconds: float | None = None
    idle_seconds: float | None = None


def facts_with_defaults(yaml: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a ``dagster.yaml`` as facts by dotted name.

    >>> facts = facts_with_defaults({"run_queue": {"max_concurrent_runs": 3}})
    >>> facts["concurrency.runs.max_concurrent_runs"], facts["run_monitoring.enabled"], facts["storage"]
    (3, False, 'sqlite')
    """
    queue = {**_setting(yaml, "run_queue", {}), **_setting(yaml, "run_coordinator.config", {})}
    told = {name: _setting(yaml, name, default) for name, default in _DEFAULTS.items()}
    # Before Dagster had `concurrency`, both were in `run_queue` or in the run_coordinator's config
    for name in ("max_concurrent_runs", "tag_concurrency_limits"):
        told[f"concurrency.runs.{name}"] = queue.get(name, told[f"concurrency.runs.{name}"])
    told["run_coordinator.config.dequeue_interval_seconds"] = queue.get("dequeue_interval_seconds", 5)
    return {**told, "storage": next(iter(yaml.get("storage") or {"sqlite": {}}))}


def _setting(yaml: Mapping[str, Any], name: str, default: Any) -> Any:
    found: Any = yaml
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return default if found is None else found


def _monitoring(enabled: bool, poll: int, most: int, free: int) -> CheckResult:  # noqa: FBT001
    # Rule 1: run monitoring enforces dagster/max_runtime and frees the slots of dead runs
    if not enabled:
        return WARN(
            "run_monitoring is off, its default",
            "set run_monitoring.enabled: true. Without it, runs of dead containers stay in progress, "
            "dagster/max_runtime is not enforced, and killed runs keep their slots",
        )
    if poll > _POLL_SECONDS or not free:
        return WARN(
            f"run_monitoring polls every {poll} s, free_slots_after_run_end_seconds is {free or 'not set'}",
            f"set poll_interval_seconds: {_POLL_SECONDS} and free_slots_after_run_end_seconds: 60. Otherwise "
            "a killed run keeps its slot in a pool indefinitely",
        )
    found = f"run_monitoring polls every {poll} s"
    return OK(f"{found}; live runs end before max_runtime_seconds, {most:,}" if most else found)


def _coordinator(kind: str, dequeue: int) -> CheckResult:
    # Rule 2: a queue enforces the limits of runs, and the daemon polls it often
    if kind != _QUEUED:
        return WARN(
            f"run_coordinator is {kind}",
            f"remove it, so that Dagster uses {_QUEUED}, which enforces every limit of runs. Without it, a "
            "backfill of 200 partitions is up to 200 processes at once",
        )
    if dequeue > _DEQUEUE_SECONDS:
        return WARN(
            f"the daemon polls the queue every {dequeue} s",
            "set run_coordinator's dequeue_interval_seconds: 1. The next run after a crash waits for a poll",
        )
    return OK(f"the daemon polls the queue every {dequeue} s")


def _limits(most: int, tags: Sequence[Mapping[str, Any]], groups: Sequence[str]) -> CheckResult:
    # Rule 3: a queued live run counts as in progress, so its group stands still
    for limit in tags:
        if limit.get("key") == _GROUP or (limit.get("key") == _LANE and limit.get("value") != "catch-up"):
            return FAIL(
                f"tag_concurrency_limits holds back {limit.get('key')}: {limit.get('value', 'any')}",
                "limit only kafka_liveness/lane: catch-up. A queued live run counts as in progress, so its "
                "group stands still",
            )
    found = f"max_concurrent_runs is {most}, groups here: {len(groups)}"
    if most != -1 and most <= len(groups):
        return FAIL(
            found,
            f"set concurrency.runs.max_concurrent_runs above {len(groups)}, with room for backfills. Live "
            "runs do not end, so the last group never starts",
        )
    return OK(found)


def _pools(granularity: str) -> CheckResult:
    # Rule 4: a run that waits for a slot is an entry of the queue, not a process
    if granularity != "run":
        return WARN(
            f"concurrency.pools.granularity is {granularity}",
            "set it to run. With op, a catch-up run starts and waits with its process open",
        )
    return OK("pools limit whole runs")


def _retries(enabled: bool, most: int) -> CheckResult:  # noqa: FBT001
    # Rule 5: the sensor starts the next run
    if enabled and most:
        return OK(f"run_retries is on, max_retries {most}: not for live runs, which the sensor starts")
    return OK("only the sensor restarts runs")


def _storage(kind: str, launcher: str, is_embedded: bool) -> CheckResult:  # noqa: FBT001
    # Rule 6: each live run queries its state once a second, from its own machine
    if kind != "sqlite":
        return OK(f"storage: {kind}, runs by {launcher}")
    elsewhere = launcher != "DefaultRunLauncher"
    advice = (
        "move the storage to Postgres. SQLite is a file with one writer: ticks, events and live runs wait "
        "for it"
    )
    if elsewhere:
        return FAIL(
            f"storage: SQLite, runs by {launcher}", f"{advice}, and runs on other machines cannot reach it"
        )
    if is_embedded:
        return OK("storage: SQLite, for one machine, as the embedded Kafka is")
    return WARN("storage: SQLite", advice)


def _threads(threads: bool, groups: Sequence[str]) -> CheckResult:  # noqa: FBT001
    # Rule 7: a tick detects a crash, so ticks must not wait for each other
    if not threads and len(groups) != 1:
        return WARN(
            "sensors.use_threads is off, its default",
            "set sensors.use_threads: true with num_workers: 8. Otherwise the groups tick one after the "
            "other, and a crash is detected only at its group's turn",
        )
    return OK("ticks run concurrently" if threads else "one group, one sensor")


def _ticks(days: Mapping[str, int] | int) -> CheckResult:
    # Rule 8: a sensor that ticks every 5 s writes 17,280 ticks a day
    kept = (
        {"success": days, "skipped": days} if isinstance(days, int) else {"success": -1, "skipped": 7, **days}
    )
    if forever := [kind for kind in ("success", "skipped") if kept[kind] == -1]:
        return WARN(
            f"ticks kept indefinitely: {', '.join(forever)}",
            "set retention.sensor.purge_after_days (skipped: 1, success: 30, failure: 30). A sensor writes "
            "up to 17,280 ticks a day",
        )
    return OK(
        f"ticks are kept for {format_duration(86_400.0 * max(kept['success'], kept['skipped']))} at most"
    )


def _executor(name: str) -> CheckResult:
    # Rule 9: a killed run leaves no step running
    if name != "in_process":
        return WARN(
            f"the code location's executor is {name}",
            "set dg.Definitions(executor=dg.in_process_executor), which backfills use too. With another "
            "executor, the step of a killed run worker continues in its own process. Spark works for it "
            "until it is fenced",
        )
    return OK("backfills run in the run's own process")


def _sensors(groups: Sequence[GroupSensorFacts]) -> CheckResult:
    # Rule 10: only the sensor restarts a lane
    if not groups:
        return WARN("no group sensor", "check that this is the code location of your assets")
    if off := [one for one in groups if not one.is_on]:
        return FAIL(
            f"off: {join_some([f'{one.name} ({one.group_id})' for one in off])}",
            "switch it on in Dagster's UI, or give the asset sensor=kl.Sensor(default_status=RUNNING). Only "
            "the sensor starts a group's live lane and reports a crash",
        )
    return OK(f"on: {join_some([one.name for one in groups])}")


def _daemon(seconds: float | None) -> CheckResult:
    # Rule 11: the daemon runs the ticks of sensors, starts queued runs and continues backfills
    advice = (
        "run `dagster-daemon run` or `dagster dev` with this DAGSTER_HOME. Without the daemon no lane is "
        "restarted"
    )
    if seconds is None:
        return WARN("no daemon has ever run for this instance", advice)
    if seconds > _DAEMON_IS_GONE_SECONDS:
        return FAIL(f"the sensor daemon was alive {format_duration(seconds)} ago", advice)
    return OK(f"the sensor daemon was alive {format_duration(seconds)} ago")


def _period(groups: Sequence[GroupSensorFacts]) -> CheckResult:
    # Rule 12: a tick detects a crash, so the measured period counts, not the configured one
    on = [one for one in groups if one.is_on]
    advice = (
        "see the sensor's page in Dagster. Ticks wait for other sensors (sensors.use_threads, num_workers), "
        "take long, or the daemon is down. A crash is detected that much later"
    )
    if never := [one.name for one in on if one.idle_seconds is None]:
        return WARN(
            f"never ticked: {join_some(never)}", "start the daemon, or check that it loads this code location"
        )
    for one in on:
        idle = one.idle_seconds or 0.0
        if idle > max(_STOPPED_PERIODS * one.interval_seconds, _DAEMON_IS_GONE_SECONDS):
            return FAIL(
                f"{one.name} ticked {format_duration(idle)} ago; its interval is "
                f"{format_duration(one.interval_seconds)}",
                advice,
            )
    if late := [one for one in on if (one.tick_period_seconds or 0.0) > _LATE_PERIODS * one.interval_seconds]:
        return WARN(join_some([_describe_ticks(one) for one in late]), advice)
    return OK(join_some([_describe_ticks(one) for one in on]) or "no group sensor is on")


def _describe_ticks(one: GroupSensorFacts) -> str:
    if one.tick_period_seconds is None:
        return f"{one.name} ticked {format_duration(one.idle_seconds or 0.0)} ago"
    interval = format_duration(one.interval_seconds)
    return f"{one.name} ticks every {format_duration(one.tick_period_seconds)}; its interval is {interval}"


INSTANCE = (
    Rule(
        "monitoring",
        (
            "run_monitoring.enabled",
            "run_monitoring.poll_interval_seconds",
            "run_monitoring.max_runtime_seconds",
            "run_monitoring.free_slots_after_run_end_seconds",
        ),
        _monitoring,
    ),
    Rule("queue", ("run_coordinator.class", "run_coordinator.config.dequeue_interval_seconds"), _coordinator),
    Rule(
        "limits",
        ("concurrency.runs.max_concurrent_runs", "concurrency.runs.tag_concurrency_limits", "groups"),
        _limits,
    ),
    Rule("pools", ("concurrency.pools.granularity",), _pools),
    Rule("retries", ("run_retries.enabled", "run_retries.max_retries"), _retries),
    Rule("storage", ("storage", "run_launcher.class", "embedded"), _storage),
    Rule("threads", ("sensors.use_threads", "groups"), _threads),
    Rule("ticks", ("retention.sensor.purge_after_days",), _ticks),
    Rule("daemon", ("daemon seconds",), _daemon),
)
LOCATION = (
    Rule("executor", ("executor",), _executor),
    Rule("sensors", ("sensors",), _sensors),
    Rule("period", ("sensors",), _period),
)
