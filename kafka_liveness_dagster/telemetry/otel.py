"""Record metrics, trace the phases of a batch, and set up exporters, by OpenTelemetry's API.

Records only if OpenTelemetry's API is already loaded, because code that sets up an SDK has loaded it. A
record never fails and never waits.

Dagster starts run workers and code servers, so only OpenTelemetry's own environment variables configure all
of them. Never waits for a collector, and never fails because of one; only a wrong setting is an error.

A trace is created after its batch has ended, because then the phases of all threads are known.
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
"""Environment variable; ``true`` enables a series for each partition."""
STALE_SECONDS = 300.0
_API = "opentelemetry"
_SCOPE = "kafka_liveness_dagster"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_create_lock = threading.Lock()
log = logging.getLogger(_SCOPE)


class Point(NamedTuple):
    """A gauge value with its labels."""

    metric: Metric
    value: float
    labels: Mapping[str, str]


def loaded_api(signal: str) -> Any:
    """Return OpenTelemetry's API for ``metrics`` or ``trace``; None if this process has not loaded it."""
    return sys.modules.get(f"{_API}.{signal}")


def is_set_up(provider: object) -> bool:
    """Return whether the provider is of an SDK; the API's own providers do nothing."""
    return not type(provider).__module__.startswith((f"{_API}.metrics", f"{_API}.trace"))


def is_enabled() -> bool:
    """Return whether an SDK receives metrics; otherwise a caller need not query their values."""
    found = loaded_api("metrics")
    return found is not None and is_set_up(found.get_meter_provider())


def record(metric: Metric, value: float, labels: Mapping[str, str]) -> None:
    """Add to a counter, or record a value in a histogram; do nothing without OpenTelemetry's API."""
    if (found := loaded_api("metrics")) is None:
        return
    with suppress_errors(metric.name):
        instrument = _instruments(found)[metric.name]
        (instrument.add if metric.instrument == "counter" else instrument.record)(value, labels)


@contextmanager
def suppress_errors(what: str) -> Iterator[None]:
    """Log an exception of the SDK instead of raising it: it must not end a run."""
    try:
        yield
    except Exception:
        log.exception("%s was not reported to OpenTelemetry", what)


def labels_of(group_id: str, tp: TopicPartition, *, by_partition: bool | None = None) -> dict[str, str]:
    """Return the labels for the metrics of a partition.

    The partition itself is a label only if ``by_partition`` is true, by default if the environment variable
    ``BY_PARTITION`` is.
    """
    asked = (
        os.environ.get(BY_PARTITION, "").strip().lower() == "true" if by_partition is None else by_partition
    )
    return {GROUP: group_id, TOPIC: tp.topic, **({PARTITION: str(tp.partition)} if asked else {})}


def set_gauges(group_id: str, points: Sequence[Point]) -> None:
    """Set the gauges of a group to these points until the next call.

    After ``STALE_SECONDS`` without a call the gauges have no value.
    """
    if (found := loaded_api("metrics")) is not None:
        _points_by_group[group_id] = (time.monotonic(), points)
        with suppress_errors(group_id):
            _instruments(found)


def tracer() -> Any:
    """Return a tracer; None if this process has not loaded OpenTelemetry's API."""
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
        """Return the current points. Caller: the SDK, on its own thread. Affects: nothing."""
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
    """Export the metrics and traces of the block, if environment variables name an exporter.

    Raises:
        InvalidSettingError: as for ``set_up``.
    """
    set_up()
    try:
        yield
    finally:
        flush()


def set_up() -> None:
    """Set up the SDK from environment variables, unless they name no exporter, or an SDK is already set up.

    If the port of the Prometheus endpoint is taken, log a warning and try it again at the next call.

    Raises:
        InvalidSettingError: the SDK, or an exporter that the environment names, is not installed; or a
            setting of the exporter is invalid.
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
            f"{said} requires OpenTelemetry's SDK, which is not installed here. Nothing is exported. Fix: "
            f"{_EXTRA}, or set OTEL_SDK_DISABLED=true for this process."
        ) from error
    with _setup_lock:
        if "TRACES" in asked and not is_set_up(trace.get_tracer_provider()):
            _set_tracer_provider([_create_exporter("TRACES", name) for name in asked["TRACES"]])
        if "METRICS" in asked and not is_set_up(metrics.get_meter_provider()):
            made = (_create_exporter("METRICS", name) for name in asked["METRICS"])
            _set_meter_provider([one for one in made if one is not None])


def flush() -> None:
    """Send the remaining data; only the exit of the process waits for it, at most ``FLUSH_SECONDS``."""
    if not _flushes:
        return
    is_done = threading.Event()

    def send() -> None:
        for one in tuple(_flushes):
            with suppress(Exception):  # the exporter has already logged that its collector is unavailable
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
    """Create an exporter or a reader; None if the Prometheus endpoint is not available now."""
    variable = f"OTEL_{signal}_EXPORTER"
    group = f"opentelemetry_{signal.lower()}_exporter"
    known: Mapping[str, Any] = {one.name: one for one in entry_points(group=group)}
    wanted = name
    protocol = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"
    if name == "otlp":
        said = os.environ.get(protocol) or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"
        if (wanted := _OTLP.get(said.strip(), "")) == "":
            raise InvalidSettingError(
                f"OTEL_EXPORTER_OTLP_PROTOCOL is {said}. Nothing is exported. Fix: set it to "
                f"{' or '.join(_OTLP)}."
            )
    if wanted not in known:
        raise InvalidSettingError(
            f"{variable} names {name}, and no exporter of that name is installed. Nothing is exported. Fix: "
            f"set it to one of {', '.join(sorted({'otlp', *known} - set(_OTLP.values())))}; {_EXTRA} "
            "installs otlp and prometheus."
        )
    try:
        return (
            _prometheus_reader() if (signal, wanted) == ("METRICS", "prometheus") else known[wanted].load()()
        )
    except Exception as error:
        raise InvalidSettingError(
            f"{variable}={name} cannot be set up: {error}. Nothing is exported. Fix: correct the OTEL_ "
            "variables of this exporter."
        ) from error


def _prometheus_reader() -> Any:
    """Start the server before creating the reader, because a reader cannot be removed."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415 - an extra
    from prometheus_client import start_http_server  # noqa: PLC0415

    host = os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "localhost")
    port = int(os.environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "9464"))
    try:
        start_http_server(port, host)
    except OSError as error:
        _warn_once(
            f"no Prometheus endpoint at {host}:{port} was started in this process ({error}). Its metrics "
            "are not scraped. Fix: set OTEL_EXPORTER_PROMETHEUS_PORT to a different port for each process. "
            "For runs, which are short-lived, set OTEL_METRICS_EXPORTER=otlp."
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

    provider = TracerProvider(shutdown_on_exit=False)  # ``flush`` limits the wait at exit to FLUSH_SECONDS
    for one in map(BatchSpanProcessor, exporters):
        provider.add_span_processor(one)
        _flushes.append(one.force_flush)
    trace.set_tracer_provider(provider)


def _set_meter_provider(found: Sequence[Any]) -> None:
    """Set the meter provider, if there is a reader.

    A Prometheus reader is not flushed, because its next scrape would have all values twice.
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
"""Minimum duration of a span in nanoseconds: shorter phases have no span."""


class PhaseTime(NamedTuple):
    """Start and end of a phase, in nanoseconds since the epoch."""

    phase: str
    started_ns: int
    ended_ns: int


@dataclass
class BatchPhases:
    """The phases of one batch.

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
        """Measure a phase, in any thread; a phase that fails counts too."""
        at = time.time_ns()
        began = time.monotonic_ns()
        try:
            yield
        finally:
            self.phase_times.append(PhaseTime(phase, at, at + time.monotonic_ns() - began))

    def add_before(self, phase: str, seconds: float) -> None:
        """Add a phase that ended when this object was created."""
        began_ns = self.started_ns - round(seconds * _NS)
        self.phase_times.insert(0, PhaseTime(phase, began_ns, self.started_ns))
        self.started_ns = began_ns

    def seconds(self) -> dict[str, float]:
        """Return the total seconds of each phase."""
        found: dict[str, float] = defaultdict(float)
        for one in self.phase_times:
            found[one.phase] += (one.ended_ns - one.started_ns) / _NS
        return dict(found)


def record_trace(
    name: str, phases: BatchPhases, attributes: Mapping[str, str | int], failed: BaseException | None = None
) -> None:
    """Record a separate trace that ends now, with a span for each phase.

    Args:
        name: name of the root span.
        phases: phases, which become its children.
        attributes: attributes of the root span. An error's message is not among them, because it may quote
            records.
        failed: error that ended the batch; None if the batch was committed.
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
        context=found.set_span_in_context(found.INVALID_SPAN),  # a root span, without a parent
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
