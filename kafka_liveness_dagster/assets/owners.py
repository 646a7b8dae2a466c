"""Refuse two assets of this process that share a consumer group, or the rows of a topic in one table.

Must not look at Kafka or at the table: runs check those.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Protocol

from kafka_liveness_dagster.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from kafka_liveness_dagster.settings.asset import KafkaAssetSettings


class Declared(Protocol):
    """What was declared: a ``KafkaAsset``. Its settings may outlive it."""

    @property
    def settings(self) -> KafkaAssetSettings: ...  # noqa: D102 - the class documents it


_owners: weakref.WeakValueDictionary[tuple[str, str], Declared] = weakref.WeakValueDictionary()


def take_group(declared: Declared) -> None:
    """Reserve the group, and the rows of its topics in its table, for this asset.

    Two assets with one group would get half of the rows each. Two groups that write one topic to one table, or to one
    sink, would replace each other's rows.

    Raises:
        InvalidSettingError: another asset of this process has the same group, or writes the same rows.
    """
    asset = declared.settings
    if _rival(asset) is not None or _writer(asset) is not None:
        gc.collect()  # an asset of a code location that was reloaded may still be referenced
    if (owner := _rival(asset)) is not None:
        raise InvalidSettingError(
            f"group_id of asset {_shown(asset)} is {asset.group_id!r}, which asset {_shown(owner)} has too: "
            f"{asset.target} and {owner.target} would get the records of half of the partitions each. Give each "
            "asset a group of its own; more runs of one asset are max_live_runs of sensor"
        )
    if (writer := _writer(asset)) is not None:
        topics = ", ".join(sorted({*asset.topics} & {*writer.topics}))
        raise InvalidSettingError(
            f"Assets {_shown(asset)} and {_shown(writer)} both write topic {topics} to {asset.target}, as "
            f"groups {asset.group_id} and {writer.group_id}. Their rows would replace each other: a row is identified "
            "by topic, partition and offset. Fix: give each asset its own table, or its own topics."
        )
    _owners[_group(asset)] = declared


def _rival(asset: KafkaAssetSettings) -> KafkaAssetSettings | None:
    """Another asset that took the group."""
    owner = _owners.get(_group(asset))
    return None if owner is None or owner.settings.identifier == asset.identifier else owner.settings


def _writer(asset: KafkaAssetSettings) -> KafkaAssetSettings | None:
    """Another asset that writes rows of the same topics to the same table or sink."""
    for owner in list(_owners.values()):
        other = owner.settings
        if (
            other.identifier != asset.identifier
            and {*other.topics} & {*asset.topics}
            and _place(other) == _place(asset)
        ):
            return other
    return None


def _place(asset: KafkaAssetSettings) -> object:
    """The sink, or the table in the catalogs of the Spark that the resource of this key reaches."""
    return asset.sink or (asset.resources.spark, asset.table)


def _shown(asset: KafkaAssetSettings) -> str:
    return asset.key.to_user_string()


def _group(asset: KafkaAssetSettings) -> tuple[str, str]:
    """Of the cluster that the resource of this key reaches."""
    return asset.resources.kafka, asset.group_id
