"""A Spark Connect server on loopback with prepared results, which records each request of pyspark's client.

It computes nothing: a test names the rows, the schema or the error that belong to a text of a plan.
"""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pyarrow as pa
from google.protobuf import any_pb2, text_format
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from pyspark.sql.connect.expressions import LiteralExpression
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc
from pyspark.sql.connect.types import pyspark_types_to_proto_types
from pyspark.sql.types import BinaryType, StructField, StructType

from kafka_liveness_dagster.spark.table.schema_check import KEY_COLUMNS

RECORDS = StructType()
for _name, _kind in {"key": BinaryType(), "value": BinaryType(), **KEY_COLUMNS}.items():
    RECORDS.add(_name, _kind)
_PARTITION = StructType([RECORDS["topic"], RECORDS["partition"]])
_SPARK_SETTINGS = {
    "spark.sql.sources.useV1SourceList": "avro,csv,json,kafka,orc,parquet,text",
    # createDataFrame fails without a value of each
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.session.localRelationCacheThreshold": "1048576",
    "spark.sql.session.localRelationChunkSizeRows": "10000",
    "spark.sql.session.localRelationChunkSizeBytes": "16777216",
    "spark.sql.session.localRelationBatchOfChunksSizeBytes": "1073741824",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.execution.pandas.convertToArrowArraySafely": "false",
    "spark.sql.execution.pandas.inferPandasDictAsMap": "false",
    "spark.sql.pyspark.inferNestedDictAsStruct.enabled": "false",
    "spark.sql.pyspark.legacy.inferArrayTypeFromFirstElement.enabled": "false",
    "spark.sql.pyspark.legacy.inferMapTypeFromFirstPair.enabled": "false",
}
_SERVER = "the server's side of the session"
_OBSERVED = re.compile(r'collect_metrics \{.*?name: "(kafka-liveness-[0-9a-f]{32})"', re.DOTALL)


class Failure(Exception):  # noqa: N818 - a result that a test prepares
    """An exception of the server: of a Java class, with Spark's condition where it has one."""

    def __init__(self, message, condition="", kind="java.lang.Exception", **parameters):
        super().__init__(message)
        self.message, self.condition, self.kind, self.parameters = message, condition, kind, parameters


class ConnectServer(base_pb2_grpc.SparkConnectServiceServicer):
    """The server.

    Attributes:
        remote: its address.
        settings: those of its sessions, as the client set them.
        observed: sums that the server returns for each observation of rows.
        executed: the text of each plan that it was to execute, in order.
        progress: completed and total tasks that it reports of each plan.
        interrupted: the tag of each interrupt; was_interrupted: set with the first one.
        reached: set when a request arrived that gets no reply.
    """

    def __init__(self, port):
        self.remote = f"sc://127.0.0.1:{port}"
        self.settings, self.observed = dict(_SPARK_SETTINGS), {"rows": 5}
        self.executed, self.interrupted, self.progress = [], [], None
        self.reached, self.was_interrupted, self._over = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self._results, self._schemas, self._silent = [], [], []

    def gives(self, text, *results):
        """Return these rows, dicts, for plans with this text, each result in turn; the last one stays.

        A function takes the plan's text and returns the result.
        """
        self._results.insert(0, (text, list(results)))

    def has(self, text, schema):
        """Return this schema, or raise this failure, for plans with this text."""
        self._schemas.insert(0, (text, schema))

    def has_table(self, quoted, columns, snapshot_id=7):
        """Have a table partitioned by Kafka's partition, at a snapshot."""
        with_metadata = StructType([*columns, StructField("_partition", _PARTITION)])
        self.has(f'"{quoted}"', lambda text: with_metadata if '"_partition"' in text else columns)
        self.gives("`refs`", f"… snapshotId={snapshot_id} …")

    def falls_silent_at(self, text):
        """Send no reply to requests with this text."""
        self._silent.append(text)

    def talks_again(self):
        """Send a reply to each new request."""
        self._silent.clear()

    def executed_with(self, text):
        """Return the plans that have this text."""
        return [plan for plan in self.executed if text in plan]

    def stop(self):
        """Release the requests that wait for a reply."""
        self._over.set()

    # --- the service ----------------------------------------------------------------------------------------

    def Config(self, request, context):  # noqa: N802
        """Set and get settings."""
        reply = base_pb2.ConfigResponse(session_id=request.session_id, server_side_session_id=_SERVER)
        what = request.operation.WhichOneof("op_type")
        operation = getattr(request.operation, what)
        if what == "set":
            self.settings.update({pair.key: pair.value for pair in operation.pairs})
        elif what == "unset":
            for key in operation.keys:
                self.settings.pop(key, None)
        else:
            keys = (
                [] if what == "get_with_default" else [base_pb2.KeyValue(key=key) for key in operation.keys]
            )
            pairs = keys or operation.pairs
            for pair in pairs:
                value = self.settings.get(pair.key, pair.value if pair.HasField("value") else None)
                reply.pairs.append(base_pb2.KeyValue(key=pair.key, value=value))
        return reply

    def AnalyzePlan(self, request, context):  # noqa: N802
        """Return versions, explanations and schemas."""
        text = _text(request)
        self._wait_if_silent(text)
        reply = base_pb2.AnalyzePlanResponse(session_id=request.session_id, server_side_session_id=_SERVER)
        what = request.WhichOneof("analyze")
        if what == "spark_version":
            reply.spark_version.version = "4.1.3"
        elif what == "explain":
            reply.explain.explain_string = self._result(text, context, "")
        else:
            schema = next((schema for part, schema in self._schemas if part in text), RECORDS)
            schema = schema(text) if callable(schema) else schema
            if isinstance(schema, Failure):
                _abort(context, schema)
            reply.schema.schema.CopyFrom(pyspark_types_to_proto_types(schema))
        return reply

    def ExecutePlan(self, request, context):  # noqa: N802
        """Record a plan; return the rows of a query."""
        text = _text(request.plan)
        self.executed.append(text)
        self._wait_if_silent(text)
        ids = {"session_id": request.session_id, "server_side_session_id": _SERVER}
        ids["operation_id"] = request.operation_id
        is_query = request.plan.HasField("root")
        is_sql = request.plan.command.HasField("sql_command")
        rows = [] if is_sql and not self._fails(text) else self._result(text, context, [])
        if is_query:
            found = pa.RecordBatch.from_pylist(rows or [{"nothing": 0}]).slice(0, len(rows))
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, found.schema) as writer:
                writer.write_batch(found)
            batch = base_pb2.ExecutePlanResponse.ArrowBatch(
                row_count=len(rows), data=sink.getvalue().to_pybytes()
            )
            yield base_pb2.ExecutePlanResponse(response_id="rows", arrow_batch=batch, **ids)
        if self.progress:
            done, total = self.progress
            stage = base_pb2.ExecutePlanResponse.ExecutionProgress.StageInfo(
                num_tasks=total, num_completed_tasks=done
            )
            progress = base_pb2.ExecutePlanResponse.ExecutionProgress(stages=[stage])
            yield base_pb2.ExecutePlanResponse(response_id="progress", execution_progress=progress, **ids)
        for name in _OBSERVED.findall(text):
            metrics = base_pb2.ExecutePlanResponse.ObservedMetrics(name=name, keys=list(self.observed))
            metrics.values.extend(
                LiteralExpression._from_value(one).to_plan(None).literal for one in self.observed.values()
            )
            yield base_pb2.ExecutePlanResponse(response_id=name, observed_metrics=[metrics], **ids)
        done = base_pb2.ExecutePlanResponse.ResultComplete()
        yield base_pb2.ExecutePlanResponse(response_id="done", result_complete=done, **ids)

    def Interrupt(self, request, context):  # noqa: N802
        """Record an interrupt."""
        self.interrupted.append(request.operation_tag)
        self.was_interrupted.set()
        return base_pb2.InterruptResponse(session_id=request.session_id, server_side_session_id=_SERVER)

    def ReleaseExecute(self, request, context):  # noqa: N802
        """Forget an operation."""
        return base_pb2.ReleaseExecuteResponse(session_id=request.session_id, server_side_session_id=_SERVER)

    def ReleaseSession(self, request, context):  # noqa: N802
        """Forget a session."""
        self._wait_if_silent("ReleaseSession")
        return base_pb2.ReleaseSessionResponse(session_id=request.session_id, server_side_session_id=_SERVER)

    def _wait_if_silent(self, text):
        if any(part in text for part in self._silent):
            self.reached.set()
            self._over.wait()

    def _prepared(self, text):
        return next((results for part, results in self._results if part in text), None)

    def _fails(self, text):
        results = self._prepared(text)
        return bool(results) and isinstance(results[0], Failure)

    def _result(self, text, context, default):
        results = self._prepared(text)
        if not results:
            return default
        result = results.pop(0) if len(results) > 1 else results[0]
        result = result(text) if callable(result) else result
        if isinstance(result, Failure):
            _abort(context, result)
        return result


def option(plan, name):
    """Return the value of an option in a plan."""
    found = re.search(rf'key: "{re.escape(name)}" value: "((?:[^"]|"(?!\s))*)"', plan)
    assert found, f"{name} is not in the plan"
    return found[1]


def _text(message):
    """Return a request as text, with SQL as the client wrote it."""
    one_line = text_format.MessageToString(message, as_one_line=True)
    return one_line.replace("\\'", "'").replace('\\"', '"')


def _abort(context, failure):
    info = error_details_pb2.ErrorInfo(reason=failure.kind, domain="org.apache.spark")
    info.metadata["classes"] = json.dumps([failure.kind])
    if failure.condition:
        info.metadata["errorClass"] = failure.condition
        info.metadata["messageParameters"] = json.dumps(failure.parameters)
    detail = any_pb2.Any()
    detail.Pack(info)
    status = status_pb2.Status(
        code=grpc.StatusCode.INTERNAL.value[0], message=failure.message, details=[detail]
    )
    context.abort_with_status(rpc_status.to_status(status))


@contextmanager
def connect_server():
    """Run a server for the block."""
    threads = ThreadPoolExecutor(20)
    serving = grpc.server(threads)
    found = ConnectServer(serving.add_insecure_port("127.0.0.1:0"))
    base_pb2_grpc.add_SparkConnectServiceServicer_to_server(found, serving)
    serving.start()
    try:
        yield found
    finally:
        found.stop()
        serving.stop(0).wait()
        threads.shutdown()
