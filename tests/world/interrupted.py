"""A run that is canceled just when it asks Spark something: its session, whose call was cut in two, ends all the same.

Run as ``python -m tests.world.interrupted REMOTE``; writes a line for each call that was interrupted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

from kafka_liveness_dagster.spark.session import connect, end

CALLS = ("its analysis", "its execution", "its release")
_start = threading.Thread.start


class Canceled(BaseException):
    """What Dagster raises in the main thread, wherever that is."""


def canceled(*_args):
    """Handle the signal as Dagster does."""
    raise Canceled


def interrupt_at(call):
    """Let the signal come while gRPC begins a call: it has its locks then, and asks a thread for the token."""
    to_come = [call]

    def start(thread):
        if "grpc" in getattr(thread._target, "__module__", ""):
            to_come[0] -= 1
            if to_come[0] == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        _start(thread)

    threading.Thread.start = start


def main(remote):
    """Interrupt each call of a small query, the first to begin with."""
    signal.signal(signal.SIGTERM, canceled)
    for number, name in enumerate(CALLS, 1):
        session = connect(remote)
        try:
            interrupt_at(number)
            session.sql("SELECT 1").collect()
            session.sql("SELECT 1").collect()  # nobody waits for a release: the signal comes while this is asked
        except Canceled:
            with contextlib.suppress(Exception):
                session.interruptAll()
            end(session)
            sys.stdout.write(f"canceled at {name}\n")
        finally:
            threading.Thread.start = _start


if __name__ == "__main__":
    main(sys.argv[1])
