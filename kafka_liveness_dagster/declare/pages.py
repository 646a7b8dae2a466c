"""What do the pages of a declared asset say of it: why its partitions are there, where its records come from?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg

from kafka_liveness_dagster.sensor.observations import topic_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.settings.declarations import KafkaAssetSettings
    from kafka_liveness_dagster.settings.windows import Windows

_LENGTHS = {"15min": "a quarter of an hour", "1h": "an hour", "1d": "a day"}


def why_crash_lag(settings: KafkaAssetSettings) -> str:
    """Markdown, beside the partitions of crash lag: what they are, and what to click."""
    return (
        f"Offset ranges that the live lane of {settings.name} jumped over after a crash, as topic:partition:start-end "
        f"without the end offset. What is failed or missing here is not in {settings.target}, or not by today's "
        "code.\n\n"
        "- **To process them:** *Materialize…*, *Failed and missing*, *Launch backfill*; in any order, while new data "
        "goes on.\n"
        "- **Why one is there:** its event in the *Events* tab. A failed one says why in the log of its run.\n"
        "- **To process one again:** select it; rows of exactly its offsets are replaced.\n"
        f"- **Who adds partitions:** the sensor `{settings.identifier}_sensor`; `kafka-liveness replay` those of a "
        "time that is to be processed again."
    )


def why_windows(settings: KafkaAssetSettings, windows: Windows) -> str:
    """Markdown, beside the windows of time: what they say, and what materializing one does."""
    return (
        f"Each partition is {_LENGTHS[windows.every]}, by the records' own timestamps ({windows.timezone}). It is "
        f"materialized when **every record of it is in {settings.target}**, whichever lane wrote it: nothing of it is "
        "owed, and nothing waits.\n\n"
        f"- **Who tells:** the sensor `{settings.identifier}_sensor`, {windows.allowed_lateness_seconds:,g} s after "
        "its end at the earliest.\n"
        "- **Why one is missing:** *windows* in the events of the topic's asset says what it waits for. None are told "
        "of a time before the group began, or before its first record.\n"
        "- **What came after that:** *late_records* in its events.\n"
        "- **To process one again:** *Materialize…*; rows of exactly its offsets are replaced, by today's code."
    )


def topic_specs(topics: Sequence[str]) -> list[dg.AssetSpec]:
    """The topics as assets: the same for every group that reads one, or Dagster could not merge their definitions."""
    told = "Kafka topic; its events show the consumer groups that read it: members, lag, unexpected departures"
    return [dg.AssetSpec(topic_key(topic), description=told, kinds={"kafka"}) for topic in topics]


def links(settings: KafkaAssetSettings) -> dict[str, Any]:
    """Where the records come from and the rows go to; the catalog's own name for a table makes Dagster show it."""
    topics = {f"topic {topic}": dg.MetadataValue.asset(topic_key(topic)) for topic in settings.topics}
    table = settings.table
    to = {"table": table, "dagster/table_name": table} if table else {"sink": settings.target}
    return {**topics, **to}


def query_shown(settings: KafkaAssetSettings) -> dict[str, Any]:
    """The SELECT of a component."""
    sql = getattr(settings.transform, "sql", None)
    return {"sql": dg.MetadataValue.md(f"```sql\n{sql}\n```")} if isinstance(sql, str) else {}
