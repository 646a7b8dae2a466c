"""What does the sensor tell on assets? Each event in words, with the numbers beside it.

The topic's asset tells of the group, a crash lag partition of its range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.partition_keys import range_of
from kafka_liveness_dagster.metadata import group_metadata
from kafka_liveness_dagster.runs.tags import CAUSE_RUN_TAG, CAUSE_TAG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.core.events import GroupEvent
    from kafka_liveness_dagster.sensor.look import GroupLook

_MEMBERS = dg.TableSchema(
    [
        dg.TableColumn("member", "string", description="the first 8 digits of its run, or a foreign client"),
        dg.TableColumn("partitions", "string"),
        dg.TableColumn("foreign", "bool", description="a consumer that is no run of this package"),
        dg.TableColumn("static", "bool", description="it has a group.instance.id (KIP-345)"),
    ]
)


def topic_key(topic: str) -> dg.AssetKey:
    """Of the asset that stands for a topic; the lineage shows its last part alone, beside a live asset called alike."""
    return dg.AssetKey(["kafka", f"{topic}_topic"])


def group_observations(
    group_id: str, topics: Sequence[str], look: GroupLook, events: Sequence[GroupEvent], failed: Sequence[str] = ()
) -> list[dg.AssetObservation]:
    """One observation a topic: what happened and what went wrong in answering it, else how the group is."""
    seen = look.snapshot
    members = [
        dg.TableRecord(
            {
                "member": member.name,
                "partitions": ", ".join(map(str, member.partitions)) or "none",
                "foreign": member.is_foreign,
                "static": member.is_static,
            }
        )
        for member in seen.known
    ]
    told = [member.name for member in seen.known] + [gone.run for gone in seen.left if not gone.reason.in_good_order]
    links = {
        f"run {name}": dg.MetadataValue.dagster_run(run.run_id) for name in told if (run := look.run(name)) is not None
    }
    lag, owed = sum(p.lag for p in seen.partitions), sum(p.owed for p in seen.partitions)
    quiet = f"group {group_id} is {seen.state.value}: {len(members)} members, lag {lag:,}, {owed:,} offsets owed"
    return [
        dg.AssetObservation(
            topic_key(topic),
            description="; ".join([*map(str, events), *failed]) or quiet,
            metadata={
                **group_metadata(
                    group_id, [p for p in seen.partitions if p.topic_partition.topic == topic], len(members), seen.left
                ),
                "state": seen.state.value,
                "events": dg.MetadataValue.md("\n".join(f"- {event}" for event in events) or "none"),
                **({"member_table": dg.MetadataValue.table(members, schema=_MEMBERS)} if members else {}),
                **({"failed": dg.MetadataValue.md("\n".join(f"- {what}" for what in failed))} if failed else {}),
                **links,
            },
        )
        for topic in topics
    ]


def range_observation(asset: dg.AssetKey, group_id: str, key: str, look: GroupLook) -> dg.AssetObservation:
    """Why a partition of the crash lag asset is there: whose crash, who found it, and how much it is."""
    owed = range_of(key)
    seen = look.partitions[owed.topic_partition]
    finder = look.run(seen.mark.run if seen.mark else None)
    tags = finder.tags if finder else {}
    cause, crashed = tags.get(CAUSE_TAG, ""), look.run(tags.get(CAUSE_RUN_TAG))
    return dg.AssetObservation(
        asset,
        partition=key,
        description=f"{owed.size:,} offsets the live lane jumped over ({cause or 'cause unknown'}): committed "
        f"{owed.start}, jumped to {owed.end}. They are in no table until this partition is materialized",
        metadata={
            "group": group_id,
            "range": str(owed),
            "offsets": owed.size,
            "cause": cause or "unknown",
            **({"crashed_run": dg.MetadataValue.dagster_run(crashed.run_id)} if crashed else {}),
            **({"found_by_run": dg.MetadataValue.dagster_run(finder.run_id)} if finder else {}),
        },
    )
