"""Send metrics and traces to OpenTelemetry: record, trace the phases of a batch, set up exporters.

Only OpenTelemetry's API is told, and only where it is loaded already: who has set an SDK up has loaded it.
Nothing that is told ever fails, or waits.

Dagster starts run workers and code servers, so OpenTelemetry's own variables are the one way to tell all of
them. Never waits for a collector and never fails because of one: only what is configured wrongly is an error.

A trace is made when its batch has ended: then all of it is known, whichever threads it was done by.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points, version
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka_liveness_dagster.core.errors import InvalidSettingError
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
_create_lock = threading.Lock()
log = logging.getLogger(_SCOPE)


class Point(NamedTuple):
    """What a gauge shows under some labels."""

    metric: Metric
    value: float
    labels: Mapping[str, str]


def loaded_api(signal: str) -> Any:
    """OpenTelemetry's API for ``metrics`` or ``trace``; None where nobody has loaded it."""
    return sys.modules.get(f"{_API}.{signal}")


def is_set_up(provider: object) -> bool:
    """Whether it is somebody's SDK: the API's own providers do nothing."""
    return not type(provider).__module__.startswith((f"{_API}.metrics", f"{_API}.trace"))


def is_enabled() -> bool:
    """Whether it is worth to ask somebody for what is to be told."""
    found = loaded_api("metrics")
    return found is not None and is_set_up(found.get_meter_provider())


def record(metric: Metric, value: float, labels: Mapping[str, str]) -> None:
    """Count or record."""
    if (found := loaded_api("metrics")) is None:
        return
    with suppress_errors(metric.name):
        instrument = _instruments(found)[metric.name]
        (instrument.add if metric.instrument == "counter" else instrument.record)(value, labels)


@contextmanager
def suppress_errors(what: str) -> Iterator[None]:
    """An SDK that raises is no reason to end a run."""
    try:
        yield
    except Exception:
        log.exception("%s was not reported to OpenTelemetry", what)


def labels_of(group_id: str, tp: TopicPartition, *, by_partition: bool | None = None) -> dict[str, str]:
    """The labels of a partition's numbers.

    The partition itself only when it is asked for, by default by the user.
    """
    asked = (
        os.environ.get(BY_PARTITION, "").strip().lower() == "true" if by_partition is None else by_partition
    )
    return {GROUP: group_id, TOPIC: tp.topic, **({PARTITION: str(tp.partition)} if asked else {})}


def set_gauges(group_id: str, points: Sequence[Point]) -> None:
    """Let the gauges of a group show these points until the next ones come.

    They show them no longer than ``STALE_SECONDS``.
    """
    if (found := loaded_api("metrics")) is not None:
        _points_by_group[group_id] = (time.monotonic(), points)
        with suppress_errors(group_id):
            _instruments(found)


def tracer() -> Any:
    """Makes spans; None where nobody has loaded the API."""
    found = loaded_api("trace")
    return None if found is None else found.get_tracer(_SCOPE, _version())


_points_by_group: dict[str, tuple[float, Sequence[Point]]] = {}
_instruments_by_meter: dict[str, Any] = {}


def _instruments(found: Any) -> Mapping[str, Any]:
    with _create_lock:
        if not _instruments_by_meter:
            meter = found.get_meter(_SCOPE, _version())
            _instruments_by_meter.update(
                {metric.name: _instrument(meter, metric, found.Observation) for metric in METRICS}
            )
    return _instruments_by_meter


def _instrument(meter: Any, metric: Metric, observation: Callable[..., Any]) -> Any:
    told = {"unit": metric.unit, "description": metric.description}
    if metric.instrument == "counter":
        return meter.create_counter(metric.name, **told)
    if metric.instrument == "histogram":
        return meter.create_histogram(metric.name, **told, explicit_bucket_boundaries_advisory=_SECONDS)

    def observed(_options: Any) -> Iterable[Any]:
        """Caller: the SDK, on a thread of its own. Affects: nothing."""
        fresh = time.monotonic() - STALE_SECONDS
        shown = [point for at, points in tuple(_points_by_group.values()) if at >= fresh for point in points]
        return [observation(point.value, point.labels) for point in shown if point.metric is metric]

    return meter.create_observable_gauge(metric.name, [observed], **told)


@cache
def _version() -> str:
    return version("kafka-liveness-dagster")


FLUSH_SECONDS = 5.0
_EXTRA = "pip install 'kafka-liveness-dagster[metrics]'"
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_flushes: list[Callable[[int], object]] = []
_setup_lock = threading.Lock()


@contextmanager
def export_telemetry() -> Iterator[None]:
    """What a run tells inside of it is exported, if its environment says where.

    Raises:
        InvalidSettingError: as ``set_up`` has it.
    """
    set_up()
    try:
        yield
    finally:
        flush()


def set_up() -> None:
    """Set up the SDK as the environment says, unless it says nothing, or somebody has set one up.

    A Prometheus endpoint whose port is taken is told of, and tried again with the next call.

    Raises:
        InvalidSettingError: the SDK is not installed, or the environment names an exporter that is not, or is
            no good.
    """
    asked = {
        signal: names
        for signal in ("TRACES", "METRICS")
        if (names := _exporter_names(f"OTEL_{signal}_EXPORTER"))
    }
    if not asked or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return
    try:
        from opentelemetry import metrics, trace  # noqa: PLC0415 - an extra
        from opentelemetry.sdk import resources  # noqa: F401, PLC0415
    except ImportError as error:
        said = " and ".join(f"OTEL_{signal}_EXPORTER={','.join(names)}" for signal, names in asked.items())
        raise InvalidSettingError(
            f"{said} asks for what OpenTelemetry's SDK does, which is not installed here: {_EXTRA}, "
            "or set OTEL_SDK_DISABLED=true for this process"
        ) from error
    with _setup_lock:
        if "TRACES" in asked and not is_set_up(trace.get_tracer_provider()):
            _set_tracer_provider([_create_exporter("TRACES", name) for name in asked["TRACES"]])
        if "METRICS" in asked and not is_set_up(metrics.get_meter_provider()):
            made = (_create_exporter("METRICS", name) for name in asked["METRICS"])
            _set_meter_provider([one for one in made if one is not None])


def flush() -> None:
    """Send what is left. Nobody waits but the process, as it ends, and for ``FLUSH_SECONDS`` at most."""
    if not _flushes:
        return
    is_done = threading.Event()

    def send() -> None:
        for one in tuple(_flushes):
            with suppress(Exception):  # its exporter has told of a collector that is away
                one(round(FLUSH_SECONDS * 1000))
        is_done.set()

    threading.Thread(target=send, name="kafka-liveness-flush", daemon=True).start()
    threading.Thread(
        target=is_done.wait, args=(FLUSH_SECONDS,), name="kafka-liveness-flushed", daemon=False
    ).start()


def _exporter_names(variable: str) -> list[str]:
    names = [name.strip() for name in os.environ.get(variable, "").split(",")]
    return [name for name in names if name and name.lower() != "none"]


def _create_exporter(signal: str, name: str) -> Any:
    """An exporter or a reader; None for a Prometheus endpoint that cannot be had just now."""
    variable = f"OTEL_{signal}_EXPORTER"
    group = f"opentelemetry_{signal.lower()}_exporter"
    known: Mapping[str, Any] = {one.name: one for one in entry_points(group=group)}
    wanted = name
    protocol = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"
    if name == "otlp":
        said = os.environ.get(protocol) or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"
        if (wanted := _OTLP.get(said.strip(), "")) == "":
            raise InvalidSettingError(
                f"OTEL_EXPORTER_OTLP_PROTOCOL is {said}: there are {' and '.join(_OTLP)}"
            )
    if wanted not in known:
        raise InvalidSettingError(
            f"{variable} names {name}, and no exporter of that name is installed: there are "
            f"{', '.join(sorted({'otlp', *known} - set(_OTLP.values())))}; {_EXTRA} brings otlp and "
            "prometheus"
        )
    try:
        return (
            _prometheus_reader() if (signal, wanted) == ("METRICS", "prometheus") else known[wanted].load()()
        )
    except Exception as error:
        raise InvalidSettingError(
            f"{variable}={name} cannot be set up: {error}; look at its OTEL_ variables"
        ) from error


def _prometheus_reader() -> Any:
    """The server first: a reader cannot be taken back."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415 - an extra
    from prometheus_client import start_http_server  # noqa: PLC0415

    host = os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "localhost")
    port = int(os.environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "9464"))
    try:
        start_http_server(port, host)
    except OSError as error:
        _warn_once(
            f"no Prometheus endpoint at {host}:{port} in this process ({error}): nothing of it is scraped. "
            "Each process needs its own (OTEL_EXPORTER_PROMETHEUS_PORT); a run comes and goes: let it "
            "export to otlp"
        )
        return None
    return PrometheusMetricReader()


@cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def _set_tracer_provider(exporters: Sequence[Any]) -> None:
    from opentelemetry import trace  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(shutdown_on_exit=False)  # ``flush`` waits for less
    for one in map(BatchSpanProcessor, exporters):
        provider.add_span_processor(one)
        _flushes.append(one.force_flush)
    trace.set_tracer_provider(provider)


def _set_meter_provider(found: Sequence[Any]) -> None:
    """Nothing where nothing is found.

    A Prometheus reader is not flushed: its next scrape would have all twice.
    """
    from opentelemetry import metrics  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader  # noqa: PLC0415

    readers = [one if isinstance(one, MetricReader) else PeriodicExportingMetricReader(one) for one in found]
    if readers:
        metrics.set_meter_provider(MeterProvider(readers, shutdown_on_exit=False))
        _flushes.extend(one.force_flush for one in readers if isinstance(one, PeriodicExportingMetricReader))


_NS = 1_000_000_000
_MIN_NS = 1_000_000
"""What takes less than a millisecond has no span."""


class PhaseTime(NamedTuple):
    """When a phase was: nanoseconds since the epoch."""

    phase: str
    started_ns: int
    ended_ns: int


@dataclass
class BatchPhases:
    """Those of one batch.

    >>> phases = BatchPhases()
    >>> with phases("write"):
    ...     pass
    >>> list(phases.seconds())
    ['write']
    """

    started_ns: int = field(default_factory=time.time_ns)
    phase_times: list[PhaseTime] = field(default_factory=list)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Be in a phase, in any thread; one that fails counts as well."""
        at = time.time_ns()
        began = time.monotonic_ns()
        try:
            yield
        finally:
            self.phase_times.append(PhaseTime(phase, at, at + time.monotonic_ns() - began))

    def add_before(self, phase: str, seconds: float) -> None:
        """A phase that had ended when these began."""
        began_ns = self.started_ns - round(seconds * _NS)
        self.phase_times.insert(0, PhaseTime(phase, began_ns, self.started_ns))
        self.started_ns = began_ns

    def seconds(self) -> dict[str, float]:
        """How long each phase took in all."""
        found: dict[str, float] = defaultdict(float)
        for one in self.phase_times:
            found[one.phase] += (one.ended_ns - one.started_ns) / _NS
        return dict(found)


def record_trace(
    name: str, phases: BatchPhases, attributes: Mapping[str, str | int], failed: BaseException | None = None
) -> None:
    """A trace of its own with a span for each phase, which ends now.

    Args:
        name: of the root span.
        phases: its children.
        attributes: of the root; what an error says is none of them, it may quote records.
        failed: what ended it; None when it was committed.
    """
    if (found := loaded_api("trace")) is None:
        return
    with suppress_errors(name):
        _record_spans(found, name, phases, attributes=attributes, failed=failed)


def _record_spans(
    found: Any,
    name: str,
    phases: BatchPhases,
    attributes: Mapping[str, str | int],
    failed: BaseException | None,
) -> None:
    made_by = tracer()
    root = made_by.start_span(
        name,
        context=found.set_span_in_context(found.INVALID_SPAN),  # nobody's child
        kind=found.SpanKind.CONSUMER,
        attributes=attributes,
        start_time=phases.started_ns,
    )
    inside = found.set_span_in_context(root)
    ended_ns = time.time_ns()
    for phase, began_ns, until_ns in phases.phase_times:
        if until_ns - began_ns >= _MIN_NS:
            made_by.start_span(phase, context=inside, start_time=began_ns).end(until_ns)
    if failed is not None:
        root.set_attribute("error.type", type(failed).__name__)
        root.set_status(found.StatusCode.ERROR)
    root.end(max(ended_ns, *(one.ended_ns for one in phases.phase_times), phases.started_ns))
