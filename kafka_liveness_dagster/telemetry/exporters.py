"""Where do metrics and traces go, from a process in which nobody has set up an SDK? Where its environment says.

Dagster starts run workers and code servers, so OpenTelemetry's own variables are the one way to tell all of them. Never
waits for a collector and never fails because of one: only what is configured wrongly is an error.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.telemetry.tell import is_set_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

FLUSH_SECONDS = 5.0
_EXTRA = "pip install 'kafka-liveness-dagster[metrics]'"
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_flushes: list[Callable[[int], object]] = []
_setting_up = threading.Lock()
log = logging.getLogger("kafka_liveness_dagster")


@contextmanager
def exported() -> Iterator[None]:
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
        InvalidSettingError: the SDK is not installed, or the environment names an exporter that is not, or is no good.
    """
    asked = {signal: names for signal in ("TRACES", "METRICS") if (names := _names(f"OTEL_{signal}_EXPORTER"))}
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
    with _setting_up:
        if "TRACES" in asked and not is_set_up(trace.get_tracer_provider()):
            _trace_to([_exporter("TRACES", name) for name in asked["TRACES"]])
        if "METRICS" in asked and not is_set_up(metrics.get_meter_provider()):
            made = (_exporter("METRICS", name) for name in asked["METRICS"])
            _measure_to([one for one in made if one is not None])


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
    threading.Thread(target=is_done.wait, args=(FLUSH_SECONDS,), name="kafka-liveness-flushed", daemon=False).start()


def _names(variable: str) -> list[str]:
    names = [name.strip() for name in os.environ.get(variable, "").split(",")]
    return [name for name in names if name and name.lower() != "none"]


def _exporter(signal: str, name: str) -> Any:
    """An exporter or a reader; None for a Prometheus endpoint that cannot be had just now."""
    variable, group = f"OTEL_{signal}_EXPORTER", f"opentelemetry_{signal.lower()}_exporter"
    known: Mapping[str, Any] = {one.name: one for one in entry_points(group=group)}
    wanted, protocol = name, f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"
    if name == "otlp":
        said = os.environ.get(protocol) or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"
        if (wanted := _OTLP.get(said.strip(), "")) == "":
            raise InvalidSettingError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {said}: there are {' and '.join(_OTLP)}")
    if wanted not in known:
        raise InvalidSettingError(
            f"{variable} names {name}, and no exporter of that name is installed: there are "
            f"{', '.join(sorted({'otlp', *known} - set(_OTLP.values())))}; {_EXTRA} brings otlp and prometheus"
        )
    try:
        return _endpoint() if (signal, wanted) == ("METRICS", "prometheus") else known[wanted].load()()
    except Exception as error:
        raise InvalidSettingError(
            f"{variable}={name} cannot be set up: {error}; look at its OTEL_ variables"
        ) from error


def _endpoint() -> Any:
    """The server first: a reader cannot be taken back."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415 - an extra
    from prometheus_client import start_http_server  # noqa: PLC0415

    host = os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "localhost")
    port = int(os.environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "9464"))
    try:
        start_http_server(port, host)
    except OSError as error:
        _warn_once(
            f"no Prometheus endpoint at {host}:{port} in this process ({error}): nothing of it is scraped. Each "
            "process needs its own (OTEL_EXPORTER_PROMETHEUS_PORT); a run comes and goes: let it export to otlp"
        )
        return None
    return PrometheusMetricReader()


@cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def _trace_to(exporters: Sequence[Any]) -> None:
    from opentelemetry import trace  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(shutdown_on_exit=False)  # ``flush`` waits for less
    for one in map(BatchSpanProcessor, exporters):
        provider.add_span_processor(one)
        _flushes.append(one.force_flush)
    trace.set_tracer_provider(provider)


def _measure_to(found: Sequence[Any]) -> None:
    """Nothing where nothing is found. A Prometheus reader is not flushed: its next scrape would have all twice."""
    from opentelemetry import metrics  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader  # noqa: PLC0415

    readers = [one if isinstance(one, MetricReader) else PeriodicExportingMetricReader(one) for one in found]
    if readers:
        metrics.set_meter_provider(MeterProvider(readers, shutdown_on_exit=False))
        _flushes.extend(one.force_flush for one in readers if isinstance(one, PeriodicExportingMetricReader))
