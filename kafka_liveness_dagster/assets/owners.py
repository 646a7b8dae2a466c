"""Refuse two assets of this process that share a consumer group, or the rows of a topic in one table.

Refuse two sensors of one group likewise.

Never reads Kafka or the table: runs check those.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Protocol

from kafka_liveness_dagster.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.settings.asset import KafkaAssetSettings


class DeclaredAsset(Protocol):
    """A declared ``KafkaAsset``. Its settings may outlive it."""

    @property
    def settings(self) -> KafkaAssetSettings: ...  # noqa: D102 - the class documents it


_claimed_assets: weakref.WeakValueDictionary[tuple[str, str], DeclaredAsset] = weakref.WeakValueDictionary()


def claim_group(declared: DeclaredAsset) -> None:
    """Reserve the group, and the rows of its topics in its table, for this asset.

    Two assets with one group would get half of the rows each. Two groups that write one topic to one table,
    or to one sink, would replace each other's rows.

    Raises:
        InvalidSettingError: another asset of this process has the same group, or writes the same rows.
    """
    asset = declared.settings
    if _asset_with_same_group(asset) is not None or _asset_with_same_rows(asset) is not None:
        gc.collect()  # an asset of a code location that was reloaded may still be referenced
    if (owner := _asset_with_same_group(asset)) is not None:
        raise InvalidSettingError(
            f"group_id of asset {_describe_asset(asset)} is {asset.group_id!r}, which asset "
            f"{_describe_asset(owner)} has too. {asset.target} and {owner.target} would each get the records "
            "of half of the partitions. Fix: give each asset its own group_id. For more runs of one asset "
            "raise max_live_runs of sensor."
        )
    if (writer := _asset_with_same_rows(asset)) is not None:
        topics = ", ".join(sorted({*asset.topics} & {*writer.topics}))
        raise InvalidSettingError(
            f"Assets {_describe_asset(asset)} and {_describe_asset(writer)} both write topic {topics} to "
            f"{asset.target}, as groups {asset.group_id} and {writer.group_id}. Their rows would replace "
            "each other: a row is identified by topic, partition and offset. Fix: give each asset its own "
            "table, or its own topics."
        )
    _claimed_assets[_group_key(asset)] = declared


_shared_sensors: weakref.WeakKeyDictionary[DeclaredAsset, str] = weakref.WeakKeyDictionary()


def claim_for_shared_sensor(declared: Sequence[DeclaredAsset], name: str) -> None:
    """Reserve these assets for a shared sensor, all or none; they then have no sensor of their own.

    Raises:
        InvalidSettingError: the own sensor of an asset was built, or another shared sensor watches its group.
    """
    for asset in declared:
        described = _describe_asset(asset.settings)
        other = shared_sensor_of(asset)
        if other not in {None, name}:
            raise InvalidSettingError(
                f"Asset {described} belongs to shared sensor {other}, and cannot belong to {name} too. Two "
                "sensors would report each event twice. Fix: leave it out of one"
            )
        if "sensor" in vars(asset):  # the cached property was read
            raise InvalidSettingError(
                f"Asset {described} has a sensor of its own already, because its definitions were read. With "
                f"shared sensor {name} each event would be reported twice. Fix: call build_shared_sensor "
                "before you read definitions"
            )
    _shared_sensors.update(dict.fromkeys(declared, name))


def shared_sensor_of(declared: DeclaredAsset) -> str | None:
    """Return the name of the shared sensor that watches the asset's group; None without one."""
    return _shared_sensors.get(declared)


def settings_of_group(group_id: str) -> KafkaAssetSettings | None:
    """Return the settings of the asset of this process that has the group; None without one."""
    found = [one.settings for one in _claimed_assets.values() if one.settings.group_id == group_id]
    return found[0] if found else None


def _asset_with_same_group(asset: KafkaAssetSettings) -> KafkaAssetSettings | None:
    """Return the asset that has reserved the group, unless it is this one; None for none."""
    owner = _claimed_assets.get(_group_key(asset))
    return None if owner is None or owner.settings.identifier == asset.identifier else owner.settings


def _asset_with_same_rows(asset: KafkaAssetSettings) -> KafkaAssetSettings | None:
    """Return another asset that writes rows of the same topics to the same table or sink; None for none."""
    for owner in list(_claimed_assets.values()):
        other = owner.settings
        if (
            other.identifier != asset.identifier
            and {*other.topics} & {*asset.topics}
            and _row_target(other) == _row_target(asset)
        ):
            return other
    return None


def _row_target(asset: KafkaAssetSettings) -> object:
    """Return the sink, or the table together with the key of the Spark resource that has its catalog."""
    return asset.sink or (asset.resources.spark, asset.table)


def _describe_asset(asset: KafkaAssetSettings) -> str:
    return asset.key.to_user_string()


def _group_key(asset: KafkaAssetSettings) -> tuple[str, str]:
    """Return the group together with the key of the Kafka resource that has its cluster."""
    return asset.resources.kafka, asset.group_id
