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
