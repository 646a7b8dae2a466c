"""Cancel a run during a request to Spark; its session, although its call was cut in two, ends all the same.

Run as ``python -m tests.integration.canceled_run REMOTE``. Writes for each interrupt whether the session
could be ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

from kafka_liveness_dagster.spark.connect.connection import connection_of
from kafka_liveness_dagster.spark.connect.session import close
from tests.timeouts import connect

ENDED, MOST = "its session is ended", 60
_enter = threading.Condition.__enter__


class Canceled(BaseException):
    """What Dagster raises in the main thread, wherever that is."""


def canceled(*_args):
    """Handle the signal as Dagster does."""
    raise Canceled


def interrupt_at(number):
    """Send the signal when gRPC has just taken a lock of its own: the one of this number within the query."""
    taken = []

    def enter(condition):
        entered = _enter(condition)
        if sys._getframe(1).f_globals.get("__name__", "").startswith("grpc"):
            taken.append(condition)
            if len(taken) == number:
                os.kill(os.getpid(), signal.SIGTERM)
        return entered

    threading.Condition.__enter__ = enter


def main(remote):
    """Interrupt a small query at each of these places, until it has no more of them."""
    signal.signal(signal.SIGTERM, canceled)
    for number in range(1, MOST):
        session = connect(remote)
        try:
            interrupt_at(number)
            session.sql("SELECT 1").collect()
        except Canceled:
            threading.Condition.__enter__ = _enter
            with contextlib.suppress(Exception):
                session.interruptAll()
            close(session)
            sys.stdout.write(f"{number}: {'given up' if connection_of(session).is_aborted else ENDED}\n")
        else:
            return
        finally:
            threading.Condition.__enter__ = _enter


if __name__ == "__main__":
    main(sys.argv[1])
