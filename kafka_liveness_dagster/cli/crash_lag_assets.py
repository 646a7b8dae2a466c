"""Find the crash lag assets of a Dagster instance, each with its consumer group.

Reads the instance's events. Loads no code location, and writes nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEY_SUFFIX = "_crash_lag"
_MAX_EVENTS = 10  # a materialization reported by hand may lack the metadata


def open_instance() -> dg.DagsterInstance | None:
    """Open the instance that ``DAGSTER_HOME`` names; None where the variable is not set.

    Raises:
        InvalidSettingError: Dagster cannot open it.
    """
    if not (home := os.environ.get("DAGSTER_HOME")):
        return None
    try:
        return dg.DagsterInstance.get()
    except Exception as error:
        raise InvalidSettingError(
            f"Dagster cannot open the instance of DAGSTER_HOME={home}: {error}. Nothing was written. Fix: "
            "set DAGSTER_HOME to the folder of your dagster.yaml."
        ) from error


def crash_lag_asset(
    instance: dg.DagsterInstance, group_id: str, asset: str | None, outcome: str
) -> dg.AssetKey:
    """Return the crash lag asset of a group.

    Args:
        instance: instance to search.
        group_id: the live lane's group.
        asset: name of the asset; None if the group must have exactly one.
        outcome: sentence of the error on the work that was not done.

    Raises:
        InvalidSettingError: the instance has no such asset, or the group has several.
    """
    known = _find_assets(instance)
    fits = [key for key, group in known.items() if group == group_id]
    if asset is not None:
        named = dg.AssetKey.from_user_string(asset)
        fits = [key for key, group in known.items() if key == named and group in {group_id, None}]
    if len(fits) == 1:
        return fits[0]
    ours = sorted(key.to_user_string() for key, group in known.items() if group == group_id)
    others = sorted(
        f"{key.to_user_string()} ({f'group {group}' if group else 'of an unknown group'})"
        for key, group in known.items()
        if group != group_id
    )
    found = f"{len(fits)} crash lag assets" if asset is None else f"no crash lag asset {asset}"
    raise InvalidSettingError(
        f"Dagster has {found} of group {group_id}. It has: {', '.join([*ours, *others]) or 'none'}. "
        f"{outcome} Fix: name one of the group's with --asset, or set DAGSTER_HOME to the instance that "
        "runs its asset."
    )


def _find_assets(instance: dg.DagsterInstance) -> dict[dg.AssetKey, str | None]:
    """Return each crash lag asset with its group; None if its events name none.

    Before the first crash, a crash lag asset has no event; then the live asset's events name the group.
    Assets of complete windows have the same metadata, but their materializations have a partition. Those of a
    live asset never have one.
    """
    known: dict[dg.AssetKey, str | None] = {}
    for key in instance.all_asset_keys():
        *folders, name = key.path
        made = instance.fetch_materializations(key, limit=_MAX_EVENTS).records
        if name.endswith(_KEY_SUFFIX):
            seen = instance.fetch_observations(key, limit=_MAX_EVENTS).records
            group = _group_of(
                [*(one.asset_observation for one in seen), *(one.asset_materialization for one in made)]
            )
            known[key] = group or known.get(key)
        elif group := _group_of([one.asset_materialization for one in made if _is_of_live_lane(one)]):
            beside = dg.AssetKey([*folders, name + _KEY_SUFFIX])
            known[beside] = known.get(beside) or group
    return known


def _is_of_live_lane(record: dg.EventLogRecord) -> bool:
    made = record.asset_materialization
    return made is not None and made.partition is None and "processed" in made.metadata


def _group_of(events: Sequence[dg.AssetMaterialization | dg.AssetObservation | None]) -> str | None:
    named = (one.metadata["group"].value for one in events if one is not None and "group" in one.metadata)
    return next(map(str, named), None)
