"""What may YAML say of an asset that Dagster's own components let it say? By the same names, resolved by Dagster."""

# No `from __future__ import annotations` here: pydantic and Dagster read the annotations.

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import dagster as dg
import docstring_parser
from pydantic import ConfigDict, Field

from kafka_liveness_dagster.settings.asset_arguments import AssetArguments

_TOLD = {one.arg_name: one.description or "" for one in docstring_parser.parse(AssetArguments.__doc__ or "").params}
_Template = dg.Resolver.default(model_field_type=str | None)


def _said(name: str) -> Any:
    return Field(default=None, description=_TOLD[name][:1].upper() + _TOLD[name][1:])


def _as_text(context: dg.ResolutionContext, tags: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Tags as Dagster has them: YAML's ``tier: 1`` is text, too."""
    return None if tags is None else {name: str(one) for name, one in context.resolve_value(tags).items()}


def _as_written(context: dg.ResolutionContext, version: str | None) -> str | None:
    """A version as text: Dagster makes a number of ``"7"``."""
    return None if version is None else str(context.resolve_value(version))


_Version = dg.Resolver(_as_written, model_field_type=str | None, inject_before_resolve=False)


class RetryPolicyModel(dg.Model):
    """``dg.RetryPolicy``, as far as YAML can say it."""

    max_retries: int = 1
    delay: float | None = None


def _retry_policy(context: dg.ResolutionContext, told: RetryPolicyModel | None) -> dg.RetryPolicy | None:
    return None if told is None else dg.RetryPolicy(**context.resolve_value(dict(told)))


_Tags = Annotated[
    Mapping[str, str] | None, dg.Resolver(_as_text, model_field_type=Mapping[str, str | int | float | bool] | None)
]


class AssetAttributes(dg.Model, dg.Resolvable):
    """Of the live asset and the crash lag asset: :class:`AssetArguments`, but for ``ins`` and ``hooks`` of Python's."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    key_prefix: str | Sequence[str] | None = _said("key_prefix")
    description: str | None = _said("description")
    owners: Sequence[str] | None = _said("owners")
    tags: _Tags = _said("tags")
    metadata: Mapping[str, Any] | None = _said("metadata")
    kinds: Sequence[str] | None = _said("kinds")
    deps: Sequence[dg.ResolvedAssetKey] | None = _said("deps")
    automation_condition: Annotated[dg.AutomationCondition | None, _Template] = _said("automation_condition")  # type: ignore[type-arg]
    freshness_policy: Annotated[dg.FreshnessPolicy | None, _Template] = _said("freshness_policy")
    code_version: Annotated[str | None, _Version] = _said("code_version")
    retry_policy: Annotated[
        dg.RetryPolicy | None, dg.Resolver(_retry_policy, model_field_type=RetryPolicyModel | None)
    ] = _said("retry_policy")
    op_tags: Mapping[str, Any] | None = _said("op_tags")
    pool: str | None = _said("pool")
    run_tags: _Tags = _said("run_tags")

    def of_dagster(self) -> dict[str, Any]:
        """What was said."""
        given = {name: getattr(self, name) for name in AssetAttributes.model_fields}
        return {name: set(one) if name == "kinds" else one for name, one in given.items() if one is not None}
