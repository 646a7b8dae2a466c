"""Which asset of this process has a consumer group? A group's commits are one asset's."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Protocol

from kafka_liveness_dagster.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from kafka_liveness_dagster.settings.declarations import KafkaAssetSettings


class Declared(Protocol):
    """What was declared: a ``KafkaAsset``. Its settings may outlive it."""

    @property
    def settings(self) -> KafkaAssetSettings: ...  # noqa: D102 - the class documents it


_owners: weakref.WeakValueDictionary[tuple[str, str], Declared] = weakref.WeakValueDictionary()


def take_group(declared: Declared) -> None:
    """The group is this asset's: two would share its partitions, and each would have half of the rows.

    Raises:
        InvalidSettingError: another asset of this process has the same group.
    """
    asset = declared.settings
    if _rival(asset) is not None:
        gc.collect()  # one that was declared before the code was loaded again may only seem to be there
    if (owner := _rival(asset)) is not None:
        raise InvalidSettingError(
            f"group_id of asset {_shown(asset)} is {asset.group_id!r}, which asset {_shown(owner)} has too: "
            f"{asset.target} and {owner.target} would get the records of half of the partitions each. Give each "
            "asset a group of its own; more runs of one asset are max_live_runs of watch"
        )
    _owners[_group(asset)] = declared


def _rival(asset: KafkaAssetSettings) -> KafkaAssetSettings | None:
    """Another asset that took the group."""
    owner = _owners.get(_group(asset))
    return None if owner is None or owner.settings.identifier == asset.identifier else owner.settings


def _shown(asset: KafkaAssetSettings) -> str:
    return asset.key.to_user_string()


def _group(asset: KafkaAssetSettings) -> tuple[str, str]:
    """Of the cluster that the resource of this key reaches."""
    return asset.resources.kafka, asset.group_id
