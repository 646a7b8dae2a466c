"""What does a transform ask for beside its batch?

``(context, batch, geo: Geo, customers)``, as an asset may.
"""

from __future__ import annotations

import functools
from inspect import Parameter, Signature, signature, unwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg
from typing_extensions import get_type_hints

from kafka_liveness_dagster.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

_CONTEXT = "context"
_RESOURCE: Any = dg.ResourceParam[object]
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class TransformSignature(NamedTuple):
    """What a transform asks for.

    Attributes:
        context: whether the run's context comes before the batch.
        parameters: by name, which Dagster gives: resources by their annotation, else what an asset of the
            name has.
    """

    context: bool
    parameters: tuple[Parameter, ...]

    def op_signature(self, resource_keys: Iterable[str], returns: Any) -> Signature:
        """Return the signature of the op that calls the transform.

        The op needs these resources itself, and returns this: None is stored nowhere. Dagster looks at
        parameters or at ``required_resource_keys``, not at both.
        """
        names = {one.name for one in self.parameters}
        kind = Parameter.POSITIONAL_OR_KEYWORD
        own = [Parameter(key, kind, annotation=_RESOURCE) for key in resource_keys if key not in names]
        context = Parameter(_CONTEXT, kind, annotation=dg.AssetExecutionContext)
        return Signature([context, *own, *self.parameters], return_annotation=returns)

    def bind(
        self, transform: Callable[..., Any], context: dg.AssetExecutionContext, others: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """The transform as a function of its batch alone, with its name.

        Of the others it gets what it asks for.
        """
        first = [context] if self.context else []
        asked = {one.name: others[one.name] for one in self.parameters}

        @functools.wraps(transform)
        def of_batch(batch: Any) -> Any:
            return transform(*first, batch, **asked)

        return of_batch if first or asked else transform


def signature_of(transform: Callable[..., Any], inputs: Collection[str] = ()) -> TransformSignature:
    """What it asks for; a parameter with a default is its own, unless it is one of these inputs.

    Raises:
        InvalidSettingError: it takes no batch, or it asks for what cannot be told.
    """
    try:
        found = list(signature(transform).parameters.values())
    except (TypeError, ValueError):  # of a function in C
        found = [Parameter("batch", Parameter.POSITIONAL_ONLY)]
    name = getattr(transform, "__qualname__", type(transform).__name__)
    is_with_context = bool(found) and found[0].name == _CONTEXT and found[0].kind in _POSITIONAL
    del found[: int(is_with_context)]
    if not found or found[0].kind not in (*_POSITIONAL, Parameter.VAR_POSITIONAL):
        before, wanted = (" behind its context", "context, batch") if is_with_context else ("", "batch")
        raise InvalidSettingError(f"the transform {name} takes no batch{before}: wanted def {name}({wanted})")
    named = {
        one.name: one
        for one in found[1:]
        if one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }
    if missing := [one for one in inputs if one not in named]:
        raise InvalidSettingError(
            f"ins has {', '.join(missing)}, of which the transform {name} has no parameter: wanted "
            f"def {name}(batch, {', '.join(missing)})"
        )
    asked = [one for one in named.values() if one.default is Parameter.empty or one.name in inputs]
    return TransformSignature(
        is_with_context, tuple(_check_parameter(one, transform, name, inputs=inputs) for one in asked)
    )


def _check_parameter(
    one: Parameter, transform: Callable[..., Any], name: str, inputs: Collection[str]
) -> Parameter:
    annotation = one.annotation
    if isinstance(annotation, str):
        holder: Any = lambda: None  # noqa: E731 - of one annotation: those of the others may not be there
        holder.__annotations__ = {one.name: annotation}
        try:
            annotation = get_type_hints(holder, globalns=_namespace_of(transform), include_extras=True)[
                one.name
            ]
        except NameError:
            if one.name not in inputs:
                raise InvalidSettingError(
                    f"{one.name} of the transform {name} is annotated with {annotation}, which is not there "
                    "when the code runs, so nobody knows whether it is a resource: import it outside of "
                    "`if TYPE_CHECKING`"
                ) from None
            annotation = Parameter.empty
    return Parameter(one.name, Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)


def _namespace_of(transform: Callable[..., Any]) -> dict[str, Any]:
    """What is known where it is written."""
    written = unwrap(transform)
    found = getattr(written, "__globals__", None) or getattr(type(written).__call__, "__globals__", {})
    return dict(found)
