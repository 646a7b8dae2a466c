"""Create topics and produce records, for the commands and for the embedded broker.

Apart from commits, these are the package's only requests that change a cluster. Lanes and sensors must not
use them on a cluster of the user's.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import ConfigResource, ConfigSource, NewTopic

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka.admin import REQUEST_SECONDS, Cluster
from kafka_liveness_dagster.kafka.clients import admin_client, create_client
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, ErrorListener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kafka_liveness_dagster.kafka.settings import KafkaSettings

EMBEDDED_PARTITIONS = 4
_OWN_TOPIC_CONFIG = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
_LINGER_MS = 20
_DELIVERY_SECONDS = 30.0  # limit for the broker's acknowledgment of sent records


class NotProducedError(KafkaLivenessError):
    """Not all records were written to the topic."""


def create_topic(
    settings: KafkaSettings,
    topic: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    config: Mapping[str, str] | None = None,
) -> int:
    """Create a topic; wait until the cluster lists it and the leaders of its partitions respond.

    Args:
        settings: settings of the cluster.
        topic: name of the topic.
        partitions: number of partitions; the broker's default, ``num.partitions``, unless given.
        replication_factor: copies of each partition; the broker's default unless given.
        config: settings of the topic, such as ``retention.ms``.

    Returns:
        The number of partitions.

    Raises:
        KafkaRefusedError: the topic exists, or the cluster refuses these numbers or settings.
    """
    admin, heard = admin_client(settings)
    wanted = NewTopic(topic, partitions, replication_factor, config=dict(config or {}))
    try:
        admin.create_topics([wanted], request_timeout=REQUEST_SECONDS)[topic].result()
    except KafkaException as error:
        raise heard.to_package_error(error, f"creating topic {topic}") from error
    give_up_at = time.monotonic() + REQUEST_SECONDS
    cluster = Cluster(settings)
    while not _is_visible(cluster, topic) and time.monotonic() < give_up_at:
        time.sleep(0.02)  # one broker created it; the broker that responds here may not list it yet
    return len(cluster.partitions([topic]))


def _is_visible(cluster: Cluster, topic: str) -> bool:
    """Return whether the next client can use the topic; a busy broker lists it before its leaders respond."""
    if topic not in cluster.topics():
        return False
    try:
        cluster.log_bounds(cluster.partitions([topic]))
    except BrokerUnreachableError:
        return False
    return True


def create_missing_topics(
    settings: KafkaSettings, topics: Iterable[str], report: Callable[[str], object]
) -> None:
    """Create missing topics; only on the embedded broker, because no other program uses it.

    Args:
        settings: settings of the embedded broker.
        topics: topics of an asset.
        report: called with a line for each created topic.
    """
    known = Cluster(settings).topics()
    for topic in (one for one in topics if one not in known):
        try:
            count = create_topic(settings, topic, partitions=EMBEDDED_PARTITIONS)
        except KafkaLivenessError as error:
            cause = error.__cause__
            if isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                continue  # another process created it between the two requests
            raise
        report(f"Created topic {topic} with {count} partitions: it did not exist on the embedded broker")


def topic_config(settings: KafkaSettings, topic: str) -> dict[str, str]:
    """Return the settings of the topic itself, without the broker's defaults.

    Raises:
        TopicNotFoundError: there is no topic of that name.
    """
    admin, heard = admin_client(settings)
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        found = admin.describe_configs([asked], request_timeout=REQUEST_SECONDS)[asked].result()
    except KafkaException as error:
        raise heard.to_package_error(error, f"reading the config of topic {topic}") from error
    return {name: one.value for name, one in sorted(found.items()) if one.source == _OWN_TOPIC_CONFIG}


@dataclass(frozen=True)
class ProducerRecord:
    """A record to produce; without a key it goes to any partition."""

    value: bytes
    key: bytes | None = None


@dataclass
class RecordProducer:
    """A producer for one topic; it writes each record once (idempotent, KIP-98) and in order.

    Attributes:
        written: number of records written to each partition.
    """

    settings: KafkaSettings
    topic: str
    written: Counter[TopicPartition] = field(default_factory=Counter)
    _refusals: list[KafkaError] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Fails at once; without this check a producer waits for minutes for a missing topic
        Cluster(self.settings).partitions([self.topic])
        self._error_listener = ErrorListener(self.settings)
        config = {
            **self.settings.client_config("kafka-liveness/produce"),
            "enable.idempotence": True,
            "linger.ms": _LINGER_MS,
            "error_cb": self._error_listener,
        }
        self._producer = create_client(Producer, config)

    def send(self, record: ProducerRecord) -> None:
        """Send a record; wait while the client's queue is full.

        Raises:
            NotProducedError: the broker refused an earlier record, or accepts none.
        """
        give_up_at = time.monotonic() + _DELIVERY_SECONDS
        while True:
            self._raise_if_refused()
            try:
                self._producer.produce(self.topic, record.value, record.key, on_delivery=self._on_delivery)
            except BufferError:  # the client's queue is full
                if time.monotonic() > give_up_at:
                    raise self._not_produced_error(
                        f"the broker accepted none for {_DELIVERY_SECONDS:g} s"
                    ) from None
                self._producer.poll(0.1)
            except KafkaException as error:
                raise self._not_produced_error(error.args[0].str()) from error
            else:
                self._producer.poll(0)
                return

    def flush(self) -> int:
        """Wait until the broker has all records; return their number.

        Raises:
            NotProducedError: the broker does not have all of them.
        """
        waiting = self._producer.flush(_DELIVERY_SECONDS)
        self._raise_if_refused()
        if waiting:
            raise self._not_produced_error(
                f"{waiting:,} records were not acknowledged within {_DELIVERY_SECONDS:g} s, and may be "
                "in the topic"
            )
        return self.written.total()

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        """Caller: the producer's ``poll`` and ``flush``.

        Affects: the count of written records, and the error of the next call.
        """
        if error is None:
            self.written[TopicPartition(message.topic(), message.partition())] += 1
        else:
            self._refusals.append(error)

    def _raise_if_refused(self) -> None:
        if self._refusals:
            raise self._not_produced_error(
                str(self._error_listener.to_package_error(self._refusals[0], f"producing to {self.topic}"))
            )

    def _not_produced_error(self, why: str) -> NotProducedError:
        return NotProducedError(
            f"{self.written.total():,} records are in topic {self.topic}, then it ended: {why}"
        )
