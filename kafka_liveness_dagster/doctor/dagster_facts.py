"""Collect facts of a Dagster instance and a code location, for ``doctor.dagster_rules``.

Reads the instance's ``dagster.yaml`` and loads the code location; docs/production.md has the advice. Queries
the instance's storage for the state of the sensors, their ticks and the daemon's heartbeat. Starts no daemon
and no run.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import wait
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg
import yaml  # type: ignore[import-untyped]

from kafka_liveness_dagster.concurrency import run_in_daemon_thread
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.doctor.dagster_rules import (
    DAEMON_SECONDS,
    INSTANCE,
    LOCATION,
    GroupSensorFacts,
    facts_with_defaults,
)
from kafka_liveness_dagster.doctor.rules import FAIL, OK, Finding, Unavailable, run_rules
from kafka_liveness_dagster.runs.tags import GROUP_TAG, LANE_TAG

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_STORAGE_SECONDS = 15.0
_DAGSTERS_EXECUTOR = "multi_or_in_process_executor"
_NO_LOCATION = Unavailable("name the code location with -m or -f to check it")
_NO_INSTANCE = Unavailable("set DAGSTER_HOME to the folder of your dagster.yaml to check the instance")
_TICKS = 21  # the latest ticks, which give the period
_MIN_STEPS = 3


def check_dagster(
    home: Path | None, module: str | None, file: Path | None, *, is_embedded: bool = False
) -> Iterator[Finding]:
    """Check the instance, then the code location; yield a finding for each check.

    A part that is not named, or cannot be read, is UNKNOWN, never OK.

    Args:
        home: ``DAGSTER_HOME``.
        module: the module of the code location's definitions.
        file: the file of the definitions, instead of a module.
        is_embedded: whether Kafka is the embedded broker, which is for one machine.
    """
    settings: dict[str, Any] | Unavailable = _NO_INSTANCE
    if home is not None:
        try:
            settings = _read_settings(home)
        except (OSError, yaml.YAMLError, InvalidSettingError) as error:
            settings = Unavailable(f"dagster.yaml in {home} cannot be read")
            yield Finding("dagster", "settings", FAIL(f"{settings.reason}: {error}"))
    location: _CodeLocation | Unavailable = _NO_LOCATION
    if module or file:
        try:
            location = _CodeLocation.from_definitions(load_definitions(module, file))
        except Exception as error:  # noqa: BLE001 - the user's own code
            location = Unavailable(f"{module or file} cannot be loaded")
            yield Finding("location", "definitions", FAIL(f"{location.reason}: {error!r}"))
    seen: _InstanceState | Unavailable
    if isinstance(settings, Unavailable):
        seen = settings
        if home is None:
            yield from run_rules("dagster", INSTANCE, settings)
    else:
        seen = _read_instance(settings, () if isinstance(location, Unavailable) else location.names)
        yield Finding(
            "dagster", "instance", OK(f"{home}, dagster {dg.__version__}, {settings['run_launcher.class']}")
        )
        yield from run_rules(
            "dagster",
            INSTANCE,
            {
                **settings,
                **_groups_fact(location),
                "daemon seconds": _daemon_age_seconds(seen),
                "embedded": is_embedded,
            },
        )
    yield from run_rules(
        "location", LOCATION, location if isinstance(location, Unavailable) else location.facts(seen)
    )


class _SensorState(NamedTuple):
    """The stored state of one sensor: its status and its latest ticks.

    The status is empty if the sensor was never switched on or off in the UI.
    """

    status: str
    ticks: tuple[float, ...]


class _InstanceState(NamedTuple):
    """The stored state of the instance: sensors by name, and the last heartbeat of the sensor daemon."""

    sensors: Mapping[str, _SensorState]
    daemon_heartbeat_at: float | None


@dataclass(frozen=True)
class _CodeLocation:
    """A code location: the name of its executor, its group sensors with their groups, and its groups."""

    executor: str
    sensors: tuple[tuple[str, dg.SensorDefinition], ...]
    groups: tuple[str, ...]

    @classmethod
    def from_definitions(cls, defs: dg.Definitions) -> _CodeLocation:
        repository = defs.get_repository_def()
        jobs = repository.get_all_jobs()
        groups = {job.name: job.tags[GROUP_TAG] for job in jobs if job.tags.get(LANE_TAG) == "live"}
        targets = ((one, of.job_name) for one in repository.sensor_defs for of in one.targets)
        sensors = tuple((groups[job], one) for one, job in targets if job in groups)
        executor = getattr(defs.executor, "name", _DAGSTERS_EXECUTOR)
        return cls(executor, sensors, tuple(sorted(set(groups.values()))))

    @property
    def names(self) -> list[str]:
        return [sensor.name for _, sensor in self.sensors]

    def facts(self, seen: _InstanceState | Unavailable) -> dict[str, Any]:
        if isinstance(seen, Unavailable) and self.sensors:
            return {"executor": self.executor, "sensors": seen}
        known: Mapping[str, _SensorState] = {} if isinstance(seen, Unavailable) else seen.sensors
        return {
            "executor": self.executor,
            "sensors": tuple(_group_sensor(*one, known) for one in self.sensors),
        }


def _group_sensor(
    group_id: str, sensor: dg.SensorDefinition, known: Mapping[str, _SensorState]
) -> GroupSensorFacts:
    """Return the facts of a sensor. Its status in the UI counts, else the status in its code."""
    one = known.get(sensor.name, _SensorState("", ()))
    in_code = sensor.default_status is dg.DefaultSensorStatus.RUNNING
    ticks = sorted(one.ticks)
    steps = [later - earlier for earlier, later in pairwise(ticks)]
    return GroupSensorFacts(
        group_id,
        sensor.name,
        is_on={"RUNNING": True, "STOPPED": False}.get(one.status, in_code),
        interval_seconds=max(DAEMON_SECONDS, sensor.minimum_interval_seconds or 0),
        tick_period_seconds=median(steps) if len(steps) >= _MIN_STEPS else None,
        idle_seconds=max(0.0, time.time() - ticks[-1]) if ticks else None,
    )


def _groups_fact(location: _CodeLocation | Unavailable) -> dict[str, Any]:
    return {"groups": location if isinstance(location, Unavailable) else location.groups}


def _daemon_age_seconds(seen: _InstanceState | Unavailable) -> float | Unavailable | None:
    """Return the seconds since the sensor daemon's last heartbeat; None if it never sent one."""
    if isinstance(seen, Unavailable):
        return seen
    return None if seen.daemon_heartbeat_at is None else max(0.0, time.time() - seen.daemon_heartbeat_at)


def _read_settings(home: Path) -> dict[str, Any]:
    if not home.is_absolute() or not home.is_dir():
        raise InvalidSettingError(
            "DAGSTER_HOME must be the absolute path of a folder; otherwise Dagster does not start"
        )
    file = home / "dagster.yaml"
    told = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}) if file.exists() else {}
    if not isinstance(told, dict):
        raise InvalidSettingError("the file is not a YAML mapping: wanted settings by name")
    return {**facts_with_defaults(told), "home": home}


def load_definitions(module: str | None, file: Path | None) -> dg.Definitions:
    """Import a code location, as `dagster dev` does.

    Raises:
        InvalidSettingError: the file is no Python file, or has no definitions.
        Exception: the code raised.
    """
    sys.path.insert(0, "")  # as Dagster does, so that modules of the current folder can be imported
    loaded: Any = import_module(module) if module else None
    if file is not None:
        spec = spec_from_file_location(file.stem, file)
        if spec is None or spec.loader is None:
            raise InvalidSettingError(f"{file} is not a Python file")
        loaded = module_from_spec(spec)
        spec.loader.exec_module(loaded)
    for one in vars(loaded).values():
        if isinstance(one, dg.Definitions):
            return one
        if type(one).__name__ == "LazyDefinitions":  # of @dg.definitions, which names no public type
            return one()  # type: ignore[no-any-return]
    raise InvalidSettingError("the code location has no dg.Definitions")


def _read_instance(settings: Mapping[str, Any], sensors: Sequence[str]) -> _InstanceState | Unavailable:
    """Return the stored state of the instance.

    The state is empty if the SQLite database does not exist: the doctor must not create it.
    """
    home = settings["home"]
    folder = Path(settings["storage.sqlite.base_dir"] or home)
    if settings["storage"] == "sqlite" and not (folder / "schedules" / "schedules.db").exists():
        return _InstanceState({}, None)

    def read() -> _InstanceState:
        with dg.DagsterInstance.from_config(str(home)) as instance:
            return _instance_state(instance, sensors)

    reading = run_in_daemon_thread(read, "kafka-liveness-instance")  # given up if the database hangs
    wait([reading], _STORAGE_SECONDS)
    if not reading.done():
        return Unavailable(f"the instance's storage did not respond in {_STORAGE_SECONDS:.0f} s")
    try:
        return reading.result()
    except Exception as error:  # noqa: BLE001 - each storage raises its own errors
        return Unavailable(f"the instance's storage failed: {error!r:.200}")


def _instance_state(instance: dg.DagsterInstance, sensors: Sequence[str]) -> _InstanceState:
    """Return the state of each sensor. Of several with one name, the one that ticked last counts.

    An instance has several states of a sensor after its code location was renamed.
    """
    found: dict[str, _SensorState] = {}
    for one in instance.all_instigator_state():
        if (name := one.instigator_name) in sensors:
            ticks = instance.get_ticks(one.instigator_origin_id, one.selector_id, limit=_TICKS)
            seen = _SensorState(one.status.value, tuple(tick.timestamp for tick in ticks))
            found[name] = max(seen, found.get(name, seen), key=lambda other: max(other.ticks, default=0.0))
    beat = instance.get_daemon_heartbeats().get("SENSOR")
    return _InstanceState(found, beat.timestamp if beat else None)
