"""Settings of an asset that came from another process, where a group of them is a dict."""

from __future__ import annotations


def made(told):
    """The same with the groups made of theirs: ``{"batching": {"in_flight": 1}}``."""
    from kafka_liveness_dagster.settings.asset import KafkaAssetSettings  # noqa: PLC0415 - after a fork, maybe

    return {
        name: KafkaAssetSettings.group(name)(**one) if isinstance(one, dict) else one
        for name, one in told.items()
    }
