"""An orders feed: makes the example's topic and keeps producing, remembering what the broker acknowledged.

``python -m definitions.feed --seconds 30 --rate 500`` feeds the embedded broker.
"""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import click
from confluent_kafka import Message, Producer

from kafka_liveness_dagster.kafka.settings import KafkaSettings
from kafka_liveness_dagster.kafka.topics import EMBEDDED_PARTITIONS, create_missing_topics

TOPIC = "orders"
PARTITIONS = EMBEDDED_PARTITIONS
_PAUSE_SECONDS = 0.05
_GOODS = ("tea", "coffee", "cocoa", "mate")


@dataclass
class OrdersFeed:
    """Produces orders from a thread of its own until it is stopped.

    Attributes:
        bootstrap_servers: where to.
        rate: orders a second, spread over all partitions.
        acknowledged: (partition, offset) -> value of every order the broker has.
    """

    bootstrap_servers: str
    rate: float = 500.0
    topic: str = TOPIC
    acknowledged: dict[tuple[int, int], str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stopped = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "linger.ms": 20,
                "enable.idempotence": True,
                "log_level": 0,
            }
        )
        self._random = random.Random(70)
        self._made = self._burst = 0
        self._thread = threading.Thread(target=self._produce, name="orders-feed", daemon=True)

    def create_topic(self) -> None:
        """Make the topic unless it exists."""
        create_missing_topics(KafkaSettings(self.bootstrap_servers), [self.topic], lambda _: None)

    def start(self) -> None:
        """Begin to produce."""
        self._thread.start()

    def stop(self) -> None:
        """Stop producing and wait until every order is acknowledged."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._producer.flush()

    def produce_burst(self, count: int) -> None:
        """Produce ``count`` orders on top of the steady rate, and wait until they are on their way."""
        self._burst += count
        while self._burst and not self._stopped.wait(_PAUSE_SECONDS):
            pass

    def _produce(self) -> None:
        at = time.monotonic()
        while not self._stopped.wait(_PAUSE_SECONDS):
            before, at = at, time.monotonic()
            due = int((at - before) * self.rate) + self._burst
            for _ in range(due):
                self._order()
            self._burst = max(0, self._burst - due)
            self._producer.poll(0)

    def _order(self) -> None:
        self._made += 1
        order = {"id": self._made, "good": self._random.choice(_GOODS), "kilos": self._random.randint(1, 40)}
        while True:
            try:
                self._producer.produce(self.topic, json.dumps(order).encode(), on_delivery=self._delivered)
            except BufferError:  # librdkafka's queue is full: let it deliver
                self._producer.poll(_PAUSE_SECONDS)
            else:
                return

    def _delivered(self, error: Any, message: Message) -> None:
        """Caller: the producer's poll or flush. Affects: what the table must hold in the end."""
        if error is not None:
            self.failed.append(str(error))
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        if partition is not None and offset is not None and isinstance(value, bytes):
            self.acknowledged[(partition, offset)] = value.decode()


@click.command()
@click.option("--seconds", default=30.0, show_default=True, help="How long to produce.")
@click.option("--rate", default=500.0, show_default=True, help="Orders a second.")
@click.option("--bootstrap-servers", default="embedded", show_default=True, help="host:port of the broker.")
def main(seconds: float, rate: float, bootstrap_servers: str) -> None:
    """Produce sample orders to the topic of the example."""
    if bootstrap_servers == "embedded":
        from kafka_liveness_dagster.embedded import services  # noqa: PLC0415 - only where it is meant

        bootstrap_servers = services.ensure_services(which=("kafka",)).bootstrap_servers
    feed = OrdersFeed(bootstrap_servers, rate)
    feed.create_topic()
    feed.start()
    with click.progressbar(range(max(1, int(seconds))), label=f"{rate:g} orders/s") as ticks:
        for _ in ticks:
            time.sleep(seconds / max(1, int(seconds)))
    feed.stop()
    click.echo(f"{len(feed.acknowledged):,} orders acknowledged by {bootstrap_servers}")


if __name__ == "__main__":
    main()
