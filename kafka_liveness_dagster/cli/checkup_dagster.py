"""Is a Dagster instance as docs/production.md advises? Its ``dagster.yaml`` is read, and a code location is loaded.

Starts no daemon and no run. Where the instance keeps its state is asked only for which sensors are on.
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import yaml  # type: ignore[import-untyped]

from kafka_liveness_dagster.core.checkup import FAIL, OK, Finding, Untold, judged
from kafka_liveness_dagster.core.checkup_dagster import INSTANCE, LOCATION, GroupSensor, with_defaults
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.runs.tags import GROUP_TAG, LANE_TAG

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_STORAGE_SECONDS = 15.0
_DAGSTERS_EXECUTOR = "multi_or_in_process_executor"
_NO_LOCATION = Untold("name the code location with -m or -f to have it looked at")


def examine(home: Path | None, module: str | None, file: Path | None) -> Iterator[Finding]:
    """The instance, then the code location if one is named.

    Args:
        home: ``DAGSTER_HOME``; without it the code location alone is looked at.
        module: of the code location's definitions.
        file: the same as a file.
    """
    try:
        settings = _settings(home) if home else None
    except (OSError, yaml.YAMLError, InvalidSettingError) as error:
        yield Finding("dagster", "settings", FAIL(f"dagster.yaml in {home} cannot be read: {error}"))
        return
    location: dict[str, Any] | Untold = _NO_LOCATION
    if module or file:
        try:
            location = _location(_definitions(module, file), _states(home, settings) if home and settings else {})
        except Exception as error:  # noqa: BLE001 - the user's own code
            yield Finding("location", "definitions", FAIL(f"{module or file} cannot be loaded: {error!r}"))
    if settings:
        groups = location if isinstance(location, Untold) else location["groups"]
        yield Finding("dagster", "instance", OK(f"{home}, dagster {dg.__version__}, {settings['run_launcher.class']}"))
        yield from judged("dagster", INSTANCE, {**settings, "groups": groups})
    if not isinstance(location, Untold):
        yield from judged("location", LOCATION, location)


def _settings(home: Path) -> dict[str, Any]:
    file = home / "dagster.yaml"
    told = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}) if file.exists() else {}
    if not isinstance(told, dict):
        raise InvalidSettingError("wanted settings by name")
    return with_defaults(told)


def _definitions(module: str | None, file: Path | None) -> dg.Definitions:
    sys.path.insert(0, "")  # as Dagster does: what lies where it is started can be imported
    loaded: Any = import_module(module) if module else None
    if file is not None:
        spec = spec_from_file_location(file.stem, file)
        if spec is None or spec.loader is None:
            raise InvalidSettingError(f"{file} is no Python file")
        loaded = module_from_spec(spec)
        spec.loader.exec_module(loaded)
    for one in vars(loaded).values():
        if isinstance(one, dg.Definitions):
            return one
        if type(one).__name__ == "LazyDefinitions":  # of @dg.definitions, which names no public type
            return one()  # type: ignore[no-any-return]
    raise InvalidSettingError("it has no dg.Definitions")


def _location(defs: dg.Definitions, states: Mapping[str, str] | Untold) -> dict[str, Any]:
    repository = defs.get_repository_def()
    groups = {job.name: job.tags[GROUP_TAG] for job in repository.get_all_jobs() if job.tags.get(LANE_TAG) == "live"}
    sensors: tuple[GroupSensor, ...] | Untold
    if isinstance(states, Untold):
        sensors = states
    else:
        of_groups = (
            (one, of.job_name) for one in repository.sensor_defs for of in one.targets if of.job_name in groups
        )
        sensors = tuple(GroupSensor(groups[job], one.name, _is_on(one, states)) for one, job in of_groups)
    return {
        "executor": getattr(defs.executor, "name", _DAGSTERS_EXECUTOR),
        "groups": tuple(sorted(set(groups.values()))),
        "sensors": sensors,
    }


def _is_on(sensor: dg.SensorDefinition, states: Mapping[str, str]) -> bool:
    """By what people switched in the UI, else by what its code says."""
    in_code = sensor.default_status is dg.DefaultSensorStatus.RUNNING
    return {"RUNNING": True, "STOPPED": False}.get(states.get(sensor.name, ""), in_code)


def _states(home: Path, settings: Mapping[str, Any]) -> dict[str, str] | Untold:
    """What the instance remembers of each sensor; nothing of one whose database nobody has made, and nor do we."""
    folder = Path(settings["storage.sqlite.base_dir"] or home)
    if settings["storage"] == "sqlite" and not (folder / "schedules" / "schedules.db").exists():
        return {}
    told: list[dict[str, str] | Untold] = []

    def ask() -> None:
        try:
            with dg.DagsterInstance.from_config(str(home)) as instance:
                told.append({one.instigator_name: one.status.value for one in instance.all_instigator_state()})
        except Exception as error:  # noqa: BLE001 - of whatever keeps the state
            told.append(Untold(f"the instance's storage says {error!r:.200}"))

    asking = threading.Thread(target=ask, daemon=True)  # a database that is silent is not waited for
    asking.start()
    asking.join(_STORAGE_SECONDS)
    return told[0] if told else Untold(f"the instance's storage did not answer in {_STORAGE_SECONDS:.0f} s")
