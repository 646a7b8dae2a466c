"""What was a batch's time spent on? Its phases, each once or more, and a trace that shows them.

A trace is made when its batch has ended: then all of it is known, whichever threads it was done by.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka_liveness_dagster.telemetry.tell import api, harmless, tracer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NS = 1_000_000_000
_SHORTEST_NS = 1_000_000
"""What takes less than a millisecond has no span."""


class Took(NamedTuple):
    """When a phase was: nanoseconds since the epoch."""

    phase: str
    began_ns: int
    ended_ns: int


@dataclass
class Phases:
    """Those of one batch.

    >>> phases = Phases()
    >>> with phases("write"):
    ...     pass
    >>> list(phases.seconds())
    ['write']
    """

    began_ns: int = field(default_factory=time.time_ns)
    took: list[Took] = field(default_factory=list)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Be in a phase, in any thread; one that fails counts as well."""
        at, began = time.time_ns(), time.monotonic_ns()
        try:
            yield
        finally:
            self.took.append(Took(phase, at, at + time.monotonic_ns() - began))

    def before(self, phase: str, seconds: float) -> None:
        """A phase that had ended when these began."""
        began_ns = self.began_ns - round(seconds * _NS)
        self.took.insert(0, Took(phase, began_ns, self.began_ns))
        self.began_ns = began_ns

    def seconds(self) -> dict[str, float]:
        """How long each phase took in all."""
        found: dict[str, float] = defaultdict(float)
        for one in self.took:
            found[one.phase] += (one.ended_ns - one.began_ns) / _NS
        return dict(found)


def trace(name: str, phases: Phases, attributes: Mapping[str, str | int], failed: BaseException | None = None) -> None:
    """A trace of its own with a span for each phase, which ends now.

    Args:
        name: of the root span.
        phases: its children.
        attributes: of the root; what an error says is none of them, it may quote records.
        failed: what ended it; None when it was committed.
    """
    if (found := api("trace")) is None:
        return
    with harmless(name):
        _trace(found, name, phases, attributes, failed)


def _trace(
    found: Any, name: str, phases: Phases, attributes: Mapping[str, str | int], failed: BaseException | None
) -> None:
    made_by = tracer()
    root = made_by.start_span(
        name,
        context=found.set_span_in_context(found.INVALID_SPAN),  # nobody's child
        kind=found.SpanKind.CONSUMER,
        attributes=attributes,
        start_time=phases.began_ns,
    )
    inside, ended_ns = found.set_span_in_context(root), time.time_ns()
    for phase, began_ns, until_ns in phases.took:
        if until_ns - began_ns >= _SHORTEST_NS:
            made_by.start_span(phase, context=inside, start_time=began_ns).end(until_ns)
    if failed is not None:
        root.set_attribute("error.type", type(failed).__name__)
        root.set_status(found.StatusCode.ERROR)
    root.end(max(ended_ns, *(one.ended_ns for one in phases.took), phases.began_ns))
