"""Build the command that materializes partitions in the user's project.

Reads the project's ``pyproject.toml``. Imports nothing of the project.
"""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core.names import PARTITION_RANGE_SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # a dependency of Dagster

_FILE = "pyproject.toml"


def materialize_command(folder: Path, asset: str, keys: Sequence[str], existing: Sequence[str]) -> str:
    """Return the command for the first neighbors of these partitions; empty outside of a Dagster project.

    A range of partitions must have no other one in it, because that would be processed again.

    Args:
        folder: current folder of the user.
        asset: name of the crash lag asset.
        keys: partitions to materialize.
        existing: all partitions of the asset, in Dagster's order.
    """
    module = _module_of(folder)
    if module is None or not keys:
        return ""
    first, *others = next(_neighbors(keys, existing), [keys[0]])
    which = (
        f"--partition-range {shlex.quote(f'{first}{PARTITION_RANGE_SEPARATOR}{others[-1]}')}"
        if others
        else f"--partition {shlex.quote(first)}"
    )
    path = "PYTHONPATH=src " if _is_in_src(folder, module) else ""
    return f"{path}dagster asset materialize -m {module} --select {shlex.quote(asset)} {which}"


def _module_of(folder: Path) -> str | None:
    """Return the module of the project's definitions; None if the folder is no Dagster project."""
    try:
        tool: Any = tomllib.loads((folder / _FILE).read_text(encoding="utf-8")).get("tool", {})
        dagster = tool.get("dagster", {})
        dg = tool.get("dg", {}).get("project", {})
        root = dg.get("root_module")
        module = dagster.get("module_name") or dg.get("code_location_target_module")
        module = module or (f"{root}.definitions" if root else None)
    except (OSError, ValueError, AttributeError):  # no such file, no TOML, another shape
        return None
    return module if isinstance(module, str) else None


def _is_in_src(folder: Path, module: str) -> bool:
    """Return whether Python finds the module only in the folder ``src``."""
    package = module.partition(".")[0]
    return (folder / "src" / package).exists() and find_spec(package) is None


def _neighbors(keys: Sequence[str], existing: Sequence[str]) -> Iterator[list[str]]:
    """Yield partitions that follow each other without another one in between."""
    wanted = {*keys}
    group: list[str] = []
    for key in existing:
        if key in wanted:
            group.append(key)
        elif group:
            yield group
            group = []
    if group:
        yield group
