"""What does ``consumer.records(batch)`` cost beside plain ``consume()``? The same ranges, the same work, in one run.

The peer is the loop that everybody writes: ``consume(num_messages)``, an error check and the value of each message,
once as librdkafka comes and once with our fetch settings. It keeps no order between partitions and commits nothing;
ours plans and commits its batches. The clock runs from the first look for records to the last record.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

import kafka_liveness_dagster as kl

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

PARTITIONS = 8
RECORDS = 400_000
REPETITIONS = 5
NUM_MESSAGES = 10_000
BATCHES = (RECORDS, 100_000, 10_000)
PLAIN = "plain consume()"


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Records of some 100 bytes that compress about as orders do."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4"})
    dice = random.Random(7)  # noqa: S311 - test data
    for n in range(records):
        order = {"order": n, "customer": dice.randrange(10**9), "amount": dice.random(), "note": f"{dice.random()}"}
        producer.produce(topic, json.dumps(order).encode(), partition=n % PARTITIONS)
        if n % 10_000 == 0:
            producer.poll(0.1)
    if left := producer.flush(60):
        raise RuntimeError(f"{left} records were not produced within 60 s: is the broker at {bootstrap} well?")


def work(message: Message) -> int:
    """What an op does with a record, at the least."""
    return len(message.value() or b"")


def plain(settings: dict[str, Any], topic: str) -> int:
    """The peer."""
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    seen = size = 0
    while seen < RECORDS:
        for message in consumer.consume(NUM_MESSAGES, 0.1):
            if message.error() is None:
                size += work(message)
                seen += 1
    consumer.close()
    return size


def ours(consumer: kl.LivenessConsumer, first: kl.Batch | None) -> int:
    """All batches, planned, read and committed."""
    size, batch = 0, first
    while batch is not None:
        for message in consumer.records(batch):
            size += work(message)
        consumer.commit(batch)
        batch = consumer.poll(0)
    return size


def timed(call: Callable[[], int], expected: int) -> tuple[float, float]:
    """Seconds on the clock, and of processor time in all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    if (size := call()) != expected:
        raise RuntimeError(f"{size:,} bytes were read instead of {expected:,}: what is measured is wrong")
    return time.perf_counter() - wall, time.process_time() - cpu


def measure(kafka: kl.KafkaLivenessResource, topic: str) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each way to read, one after the other in every repetition."""
    settings = kafka.settings()
    common = {"bootstrap.servers": settings.bootstrap_servers, "group.id": "plain", "enable.auto.commit": False}
    peers = {PLAIN: common, f"{PLAIN}, our fetch settings": settings.reader("plain", "plain")}
    expected = plain(common, topic)  # the broker's page cache is warm from here on
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(REPETITIONS):
        for name, config in peers.items():
            found.setdefault(name, []).append(timed(lambda config=config: plain(config, topic), expected))  # type: ignore[misc]
        for size in BATCHES:
            with kafka.consumer(
                topics=[topic], group_id=f"ours-{uuid4().hex[:8]}", max_poll_records=size, max_batch_seconds=600
            ) as consumer:
                first = consumer.poll(60)  # joining the group is no part of reading
                seconds = timed(lambda c=consumer, b=first: ours(c, b), expected)  # type: ignore[misc]
            found.setdefault(f"records(), batches of {size:,}", []).append(seconds)
    return found


def main() -> dict[str, dict[str, float]]:
    """Print the table; medians, quartiles and ratios by name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", default="embedded")
    kafka, topic = kl.KafkaLivenessResource(**vars(parser.parse_args())), f"orders-{uuid4().hex[:8]}"
    fill(kafka.settings().bootstrap_servers, topic, RECORDS)
    seconds = measure(kafka, topic)
    table = Table(
        "", "records/s", "quartiles", "of plain", "CPU µs a record", "CPU of plain", title=f"{RECORDS:,} records"
    )
    result: dict[str, dict[str, float]] = {}
    peer_cpu = statistics.median(cpu for _, cpu in seconds[PLAIN])
    for name, runs in seconds.items():
        rates = [RECORDS / wall for wall, _ in runs]
        low, rate, high = statistics.quantiles(rates, n=4)
        # each repetition is compared with its own peer: what else the machine does changes slowly
        ratio = statistics.median(peer / wall for (wall, _), (peer, _) in zip(runs, seconds[PLAIN], strict=True))
        cpu = statistics.median(cpu for _, cpu in runs)
        result[name] = {
            "records_per_second": rate,
            "low": low,
            "high": high,
            "ratio": ratio,
            "cpu_ratio": peer_cpu / cpu,
        }
        cells = (f"{rate:,.0f}", f"{low:,.0f}-{high:,.0f}", f"{ratio:.2f}", f"{cpu / RECORDS * 1e6:.2f}")
        table.add_row(name, *cells, f"{peer_cpu / cpu:.2f}")
    Console(width=120).print(table)
    return result


if __name__ == "__main__":
    main()
