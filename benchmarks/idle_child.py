"""An idle process for `idle`: a plain consumer that polls, or an open Spark session.

Prints a line when it is idle, and goes on until it is ended.
"""

from __future__ import annotations

import signal
import sys

READY = "at rest"


def poll(servers: str, topic: str) -> None:
    """confluent-kafka with its defaults, once a second, over a topic that it has read."""
    from confluent_kafka import Consumer  # noqa: PLC0415 - the other one has none

    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": f"{topic}-peer", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    told = has_read = False
    while True:
        message = consumer.poll(1.0)
        has_read = has_read or message is not None
        if has_read and message is None and not told:
            told = True
            print(READY, flush=True)  # noqa: T201 - for the parent


def hold() -> None:
    """A session as a run has it, which has worked once."""
    import kafka_liveness_dagster as kl  # noqa: PLC0415 - the other one does without

    session = kl.SparkConnectResource().session()
    session.range(10).count()
    print(READY, flush=True)  # noqa: T201 - for the parent
    signal.pause()


if __name__ == "__main__":
    if sys.argv[1] == "poll":
        poll(*sys.argv[2:])
    else:
        hold()
