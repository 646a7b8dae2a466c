"""Bind the parameters of a transform besides its batch: ``(context, batch, geo: Geo, customers)``.

They are those that an asset may have. Never calls the transform.
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
    """The parameters of a transform besides its batch.

    Attributes:
        context: whether the run's context comes before the batch.
        parameters: parameters that Dagster passes by name: a resource if the annotation is one, else the
            value of the asset with that name.
    """

    context: bool
    parameters: tuple[Parameter, ...]

    def op_signature(self, resource_keys: Iterable[str], returns: Any) -> Signature:
        """Return the signature of the op that calls the transform.

        Dagster reads either parameters or ``required_resource_keys``, not both. So the op's own resources are
        parameters, too.

        Args:
            resource_keys: resources that the op itself needs.
            returns: return annotation of the op; Dagster stores no result of an op that returns None.
        """
        names = {one.name for one in self.parameters}
        kind = Parameter.POSITIONAL_OR_KEYWORD
        own = [Parameter(key, kind, annotation=_RESOURCE) for key in resource_keys if key not in names]
        context = Parameter(_CONTEXT, kind, annotation=dg.AssetExecutionContext)
        return Signature([context, *own, *self.parameters], return_annotation=returns)

    def bind(
        self, transform: Callable[..., Any], context: dg.AssetExecutionContext, others: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """Return the transform as a function of its batch alone, with the same name.

        It gets only those of the others that are its parameters.
        """
        first = [context] if self.context else []
        asked = {one.name: others[one.name] for one in self.parameters}

        @functools.wraps(transform)
        def of_batch(batch: Any) -> Any:
            return transform(*first, batch, **asked)

        return of_batch if first or asked else transform


def signature_of(transform: Callable[..., Any], inputs: Collection[str] = ()) -> TransformSignature:
    """Return the parameters of a transform.

    Dagster passes no parameter that has a default, unless it is one of these inputs.

    Raises:
        InvalidSettingError: it takes no batch, lacks one of the inputs, or has an annotation that is unknown
            at run time.
    """
    try:
        found = list(signature(transform).parameters.values())
    except (TypeError, ValueError):  # a function in C has no signature
        found = [Parameter("batch", Parameter.POSITIONAL_ONLY)]
    name = getattr(transform, "__qualname__", type(transform).__name__)
    is_with_context = bool(found) and found[0].name == _CONTEXT and found[0].kind in _POSITIONAL
    del found[: int(is_with_context)]
    if not found or found[0].kind not in (*_POSITIONAL, Parameter.VAR_POSITIONAL):
        before, wanted = (" after its context", "context, batch") if is_with_context else ("", "batch")
        raise InvalidSettingError(
            f"transform {name} takes no batch{before}. Fix: define it as def {name}({wanted})"
        )
    named = {
        one.name: one
        for one in found[1:]
        if one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }
    if missing := [one for one in inputs if one not in named]:
        raise InvalidSettingError(
            f"ins has {', '.join(missing)}, but transform {name} has no such parameter. Fix: define it as "
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
        holder: Any = lambda: None  # noqa: E731 - resolves one annotation: others may be unknown
        holder.__annotations__ = {one.name: annotation}
        try:
            annotation = get_type_hints(holder, globalns=_namespace_of(transform), include_extras=True)[
                one.name
            ]
        except NameError:
            if one.name not in inputs:
                raise InvalidSettingError(
                    f"{one.name} of transform {name} is annotated with {annotation}, which is unknown at "
                    "run time. Dagster must know whether it is a resource. Fix: import it outside of "
                    "`if TYPE_CHECKING`"
                ) from None
            annotation = Parameter.empty
    return Parameter(one.name, Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)


def _namespace_of(transform: Callable[..., Any]) -> dict[str, Any]:
    """Return the globals of the transform's module, which resolve its annotations."""
    written = unwrap(transform)
    found = getattr(written, "__globals__", None) or getattr(type(written).__call__, "__globals__", {})
    return dict(found)
