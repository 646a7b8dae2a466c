"""What a Spark Connect client leaves on the server when it is killed.

An operation that goes on without it.
"""

from __future__ import annotations

import grpc
from pyspark.sql.connect.proto import base_pb2 as pb2

from tests.timeouts import connect

KEEPS_ANSWERS = """
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator as Responses

Responses._release_until = lambda *_: None  # the server keeps them all, so a test can attach to the rest
"""
"""Goes before what a client runs that is to be killed.

With answers released nobody can attach behind them.
"""


def await_end(remote, *operations):
    """Wait until operations that their client left on the server have ended, whatever came of them."""
    session = connect(remote)
    for operation in operations:
        request = pb2.ReattachExecuteRequest(session_id=session.client._session_id, operation_id=operation)
        request.user_context.user_id = "worker"
        metadata = session.client._builder.metadata()
        try:
            for _ in session.client._stub.ReattachExecute(request, metadata=metadata, timeout=300):
                pass
        except grpc.RpcError as error:
            if "INVALID_" in error.details():  # of the look, not of the operation, which may well end refused
                raise
    session.stop()


def is_at_work(remote, session_id, operation):
    """Return whether an operation of a client that is gone still runs; attaches to it for a moment."""
    session = connect(remote)
    request = pb2.ReattachExecuteRequest(session_id=session_id, operation_id=operation)
    request.user_context.user_id = session.client._user_id or ""
    try:
        for _ in session.client._stub.ReattachExecute(
            request, metadata=session.client._builder.metadata(), timeout=3
        ):
            pass
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    finally:
        session.stop()
    return False
