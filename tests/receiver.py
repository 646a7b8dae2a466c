"""A collector: takes OTLP over HTTP or gRPC, and says what came."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from kafka_liveness_dagster.telemetry import metrics

Metrics, Traces = metrics_service_pb2.ExportMetricsServiceRequest, trace_service_pb2.ExportTraceServiceRequest


class ExportedTelemetry:
    """What one or several processes have exported; of each metric what came last from each."""

    def __init__(self):
        self.spans, self.resources, self._points = [], [], {}

    def take(self, request):
        """One request of either kind."""
        for one in getattr(request, "resource_spans", ()):
            self.resources.append(plain(one.resource.attributes))
            self.spans += [span for scope in one.scope_spans for span in scope.spans]
        for one in getattr(request, "resource_metrics", ()):
            self.resources.append(process := plain(one.resource.attributes))
            for metric in (metric for scope in one.scope_metrics for metric in scope.metrics):
                for point in getattr(metric, metric.WhichOneof("data")).data_points:
                    labels = plain(point.attributes)
                    key = (metric.name, process.get("service.instance.id"), *sorted(labels.items()))
                    self._points[key] = (metric.name, labels, point)

    def points(self, metric, **under):
        """Those of a metric with these labels, by their names in the table: ``LANE="live"``."""
        labels = {getattr(metrics, name): value for name, value in under.items()}
        return [
            point
            for name, has, point in self._points.values()
            if name == metric.name and labels.items() <= has.items()
        ]

    def total(self, metric, **under):
        """The sum of a counter's or a gauge's points."""
        return sum(point.as_int or point.as_double for point in self.points(metric, **under))

    def count(self, metric, **under):
        """How often a histogram was told."""
        return sum(point.count for point in self.points(metric, **under))

    def labels(self):
        """Every label and every span's attribute, with its values."""
        of_spans = (plain(span.attributes) for span in self.spans)
        return [*(has for _, has, _ in self._points.values()), *of_spans]


def plain(attributes):
    """OTLP's attributes as a dict."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def over_http(status=200):
    """A collector at ``http://127.0.0.1:port``: what it received, and where it is."""
    received = ExportedTelemetry()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if status == 200:
                received.take((Metrics if self.path == "/v1/metrics" else Traces).FromString(body))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield received, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def over_grpc():
    """The same over gRPC."""
    received, server = ExportedTelemetry(), grpc.server(ThreadPoolExecutor(2))

    class OfMetrics(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request, context):  # noqa: N802 - its name in the protocol
            received.take(request)
            return metrics_service_pb2.ExportMetricsServiceResponse()

    class OfTraces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request, context):  # noqa: N802
            received.take(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(OfMetrics(), server)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(OfTraces(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield received, f"http://127.0.0.1:{port}"
    finally:
        server.stop(None)
