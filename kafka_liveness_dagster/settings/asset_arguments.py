"""What of ``dg.asset`` may be said of a Kafka asset, too?

By Dagster's names, of Dagster's types, judged by Dagster.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypedDict

import dagster as dg

from kafka_liveness_dagster.core.names import display

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet


class AssetArguments(TypedDict, total=False):
    """Arguments of ``dg.asset``, for both the live and the crash lag asset unless stated otherwise.

    Attributes:
        key_prefix: of both assets; their jobs, sensor and pool are named after the whole key,
            ``eu__orders_job``.
        description: of the live asset; the transform's docstring unless given.
        owners: users by e-mail, teams as ``team:name``.
        tags: to search and to filter by.
        metadata: beside ours, which stay.
        kinds: beside kafka, spark and iceberg.
        deps: assets that the transform reads by itself, beside the topics.
        ins: how further parameters of the transform are loaded from other assets.
        automation_condition: of the live asset, beside the sensor, which starts its runs anyway.
        freshness_policy: of the live asset, which is materialized while it is at work.
        code_version: of the transform.
        retry_policy: of a run that fails; the sensor starts another one anyway.
        op_tags: of the op, ``kafka_liveness/max_batch_seconds`` for one.
        pool: of the live asset; the crash lag asset has one of its own.
        hooks: on the success or failure of either asset's op.
        run_tags: of the runs that the sensor starts.
    """

    key_prefix: str | Sequence[str]
    description: str
    owners: Sequence[str]
    tags: Mapping[str, str]
    metadata: Mapping[str, Any]
    kinds: AbstractSet[str]
    deps: Iterable[Any]
    ins: Mapping[str, dg.AssetIn]
    automation_condition: dg.AutomationCondition[dg.AssetKey]
    freshness_policy: dg.FreshnessPolicy
    code_version: str
    retry_policy: dg.RetryPolicy
    op_tags: Mapping[str, Any]
    pool: str
    hooks: AbstractSet[dg.HookDefinition]
    run_tags: Mapping[str, str]


LIVE_ASSET_ONLY = frozenset({"description", "automation_condition", "freshness_policy", "pool"})
JOB_ARGUMENTS = frozenset({"run_tags"})


def key_prefix_of(arguments: Mapping[str, Any]) -> list[str]:
    """The parts of the key before its name."""
    given = arguments.get("key_prefix") or []
    return [given] if isinstance(given, str) else list(given)


def refused_arguments(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Each argument that Dagster does not take: its name, its value, and what Dagster says."""
    for name, value in arguments.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _try_argument(name, value)
        except Exception as error:  # noqa: BLE001 - Dagster has several kinds, and none in common
            yield name, display(value), " ".join(str(error).split())


def _try_argument(name: str, value: Any) -> None:
    """Let Dagster have a look at one argument."""
    if name in JOB_ARGUMENTS:
        dg.define_asset_job("tried", tags=value)
        return
    if name == "key_prefix":
        dg.AssetKey([*key_prefix_of({name: value}), "tried"]).to_python_identifier()
    if name == "ins":  # which are parameters of the transform, the asset says
        if not all(isinstance(one, dg.AssetIn) for one in dict(value).values()):
            raise TypeError("wanted a dg.AssetIn for each parameter of the transform")
        return
    dg.asset(name="tried", **{name: value})(lambda: None)
