"""Who hears of a metric? Whoever has set up an SDK of OpenTelemetry in this process; else nobody, at no cost.

Only OpenTelemetry's API is told, and only where it is loaded already: who has set an SDK up has loaded it. Nothing that
is told ever fails, or waits.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka_liveness_dagster.telemetry.metrics import GROUP, METRICS, PARTITION, TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.telemetry.metrics import Metric

BY_PARTITION = "KAFKA_LIVENESS_METRICS_BY_PARTITION"
"""An environment variable: ``true`` for series of each partition."""
STALE_SECONDS = 300.0
_API = "opentelemetry"
_SCOPE = "kafka_liveness_dagster"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_making = threading.Lock()
log = logging.getLogger(_SCOPE)


class Point(NamedTuple):
    """What a gauge shows under some labels."""

    metric: Metric
    value: float
    labels: Mapping[str, str]


def api(signal: str) -> Any:
    """OpenTelemetry's API for ``metrics`` or ``trace``; None where nobody has loaded it."""
    return sys.modules.get(f"{_API}.{signal}")


def is_set_up(provider: object) -> bool:
    """Whether it is somebody's SDK: the API's own providers do nothing."""
    return not type(provider).__module__.startswith((f"{_API}.metrics", f"{_API}.trace"))


def is_heard() -> bool:
    """Whether it is worth to ask somebody for what is to be told."""
    found = api("metrics")
    return found is not None and is_set_up(found.get_meter_provider())


def tell(metric: Metric, value: float, labels: Mapping[str, str]) -> None:
    """Count or record."""
    if (found := api("metrics")) is None:
        return
    with harmless(metric.name):
        instrument = _instruments(found)[metric.name]
        (instrument.add if metric.instrument == "counter" else instrument.record)(value, labels)


@contextmanager
def harmless(what: str) -> Iterator[None]:
    """An SDK that raises is no reason to end a run."""
    try:
        yield
    except Exception:
        log.exception("%s was not told to OpenTelemetry", what)


def labels_of(group_id: str, tp: TopicPartition, *, by_partition: bool | None = None) -> dict[str, str]:
    """The labels of a partition's numbers; the partition itself only when it is asked for, by default by the user."""
    asked = os.environ.get(BY_PARTITION, "").strip().lower() == "true" if by_partition is None else by_partition
    return {GROUP: group_id, TOPIC: tp.topic, **({PARTITION: str(tp.partition)} if asked else {})}


def show(group_id: str, points: Sequence[Point]) -> None:
    """Let the gauges of a group show these points until the next ones come, and no longer than ``STALE_SECONDS``."""
    if (found := api("metrics")) is not None:
        _shown[group_id] = (time.monotonic(), points)
        with harmless(group_id):
            _instruments(found)


def tracer() -> Any:
    """Makes spans; None where nobody has loaded the API."""
    found = api("trace")
    return None if found is None else found.get_tracer(_SCOPE, _version())


_shown: dict[str, tuple[float, Sequence[Point]]] = {}
_made: dict[str, Any] = {}


def _instruments(found: Any) -> Mapping[str, Any]:
    with _making:
        if not _made:
            meter = found.get_meter(_SCOPE, _version())
            _made.update({metric.name: _instrument(meter, metric, found.Observation) for metric in METRICS})
    return _made


def _instrument(meter: Any, metric: Metric, observation: Callable[..., Any]) -> Any:
    told = {"unit": metric.unit, "description": metric.description}
    if metric.instrument == "counter":
        return meter.create_counter(metric.name, **told)
    if metric.instrument == "histogram":
        return meter.create_histogram(metric.name, **told, explicit_bucket_boundaries_advisory=_SECONDS)

    def observed(_options: Any) -> Iterable[Any]:
        """Caller: the SDK, on a thread of its own. Affects: nothing."""
        fresh = time.monotonic() - STALE_SECONDS
        shown = [point for at, points in tuple(_shown.values()) if at >= fresh for point in points]
        return [observation(point.value, point.labels) for point in shown if point.metric is metric]

    return meter.create_observable_gauge(metric.name, [observed], **told)


@cache
def _version() -> str:
    return version("kafka-liveness-dagster")
