"""Accept arguments of ``dg.asset`` for a Kafka asset, with Dagster's names and types.

Never validates a value itself: Dagster checks each of them.
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
        key_prefix: prefix of both assets' keys; their jobs, sensor and pool are named after the whole key,
            ``eu__orders_job``.
        description: description of the live asset; by default the transform's docstring.
        owners: users by e-mail, teams as ``team:name``.
        tags: tags to search and to filter by.
        metadata: metadata in addition to this package's own, which cannot be replaced.
        kinds: kinds in addition to kafka, spark and iceberg.
        deps: assets that the transform reads by itself, in addition to the topics.
        ins: source of each further parameter of the transform that is loaded from another asset.
        automation_condition: condition of the live asset; the sensor starts its runs in any case.
        freshness_policy: policy of the live asset, which is materialized during its run.
        code_version: version of the transform.
        retry_policy: policy for a failed run; the sensor starts another run in any case.
        op_tags: tags of the op, such as ``kafka_liveness/max_batch_seconds``.
        pool: pool of the live asset; the crash lag asset has its own.
        hooks: hooks for the success or failure of either asset's op.
        run_tags: tags of the runs that the sensor starts.
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
    """Return the parts of the asset key before the name."""
    given = arguments.get("key_prefix") or []
    return [given] if isinstance(given, str) else list(given)


def refused_arguments(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the value and Dagster's error of each argument that Dagster refuses."""
    for name, value in arguments.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _try_argument(name, value)
        except Exception as error:  # noqa: BLE001 - Dagster's error classes have no common base
            yield name, display(value), " ".join(str(error).split())


def _try_argument(name: str, value: Any) -> None:
    """Build a Dagster definition with one argument; Dagster's error passes through."""
    if name in JOB_ARGUMENTS:
        dg.define_asset_job("tried", tags=value)
        return
    if name == "key_prefix":
        dg.AssetKey([*key_prefix_of({name: value}), "tried"]).to_python_identifier()
    if name == "ins":  # ``signature_of`` checks that the transform has these parameters
        if not all(isinstance(one, dg.AssetIn) for one in dict(value).values()):
            raise TypeError("it needs a dg.AssetIn for each parameter of the transform")
        return
    dg.asset(name="tried", **{name: value})(lambda: None)
