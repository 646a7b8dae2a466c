"""What do the brokers say of how they are set up? Facts for ``doctor.kafka_rules``; each question is bounded in time.

Never changes anything, and takes no answer for none: what may not be asked is ``Untold``, with the right that it needs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec

from kafka_liveness_dagster.doctor.rules import Untold
from kafka_liveness_dagster.kafka.admin import REQUEST_SECONDS
from kafka_liveness_dagster.kafka.clients import admin_client

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Future

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.kafka.settings import KafkaSettings

_KIND = ConfigResource.Type
_MAY_NOT = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_COMMITS = "__consumer_offsets"
_CLUSTER = "the cluster"


class Setup:
    """How a cluster is set up, asked.

    Every method raises ``BrokerUnreachableError`` within ``REQUEST_SECONDS`` when no broker answers, and
    ``AccessRefusedError`` when the login is refused.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._admin, self._heard = admin_client(settings)

    def brokers(self) -> tuple[int, ...]:
        """Their ids."""
        try:
            return tuple(sorted(self._admin.list_topics(timeout=REQUEST_SECONDS).brokers))
        except KafkaException as error:
            raise self._named(error, "asking for its brokers") from error

    def cluster(self, brokers: Iterable[int], names: Iterable[str]) -> dict[str, Any] | Untold:
        """The lowest broker's settings, and under ``differing`` those of ``names`` in which others differ from it."""
        asked = {broker: ConfigResource(_KIND.BROKER, str(broker)) for broker in brokers}
        futures = {broker: self._config(one) for broker, one in asked.items()}  # all are under way before the first
        told = {broker: self._answer(future, "DESCRIBE_CONFIGS", _CLUSTER) for broker, future in futures.items()}
        first = next(iter(told.values()))
        if isinstance(first, Untold):
            return first
        configs = {broker: one for broker, one in told.items() if not isinstance(one, Untold)}
        values = {name: {broker: one.get(name, "unknown") for broker, one in configs.items()} for name in names}
        return {**first, "differing": {name: of for name, of in values.items() if len(set(of.values())) > 1}}

    def topic(self, name: str) -> dict[str, Any] | Untold:
        """A topic's settings as they count, its own or the broker's."""
        future = self._config(ConfigResource(_KIND.TOPIC, name))
        return self._answer(future, "DESCRIBE_CONFIGS", f"topic {name}")

    def group(self, group_id: str) -> dict[str, Any] | Untold:
        """What the broker decides for a group under KIP-848; the group need not exist."""
        future = self._config(ConfigResource(_KIND.GROUP, group_id))
        return self._answer(future, "DESCRIBE_CONFIGS", f"group {group_id}")

    def offsets_topic(self, cluster: Mapping[str, Any] | Untold) -> dict[str, Any] | Untold:
        """Copies and ``min.insync.replicas`` of the topic that holds all commits; before it is made, what it will have.

        Args:
            cluster: the brokers' settings.
        """
        future = self._admin.describe_topics(TopicCollection([_COMMITS]), request_timeout=REQUEST_SECONDS)[_COMMITS]
        try:
            found: Any = future.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                if isinstance(cluster, Untold):
                    return cluster
                names = ("min.insync.replicas", "offsets.topic.replication.factor")
                in_sync, copies = (cluster.get(name, Untold(f"{name} is not told to this client")) for name in names)
                return {"copies": copies, "min.insync.replicas": in_sync}
            return self._untold(error, "DESCRIBE", f"topic {_COMMITS}")
        config = self.topic(_COMMITS)
        if isinstance(config, Untold):
            return config
        return {**config, "copies": min(len(one.replicas) for one in found.partitions)}

    def ahead(self, partitions: Iterable[TopicPartition]) -> float | None:
        """Seconds by which the newest timestamp in these partitions is ahead of this clock; None without a record.

        By the broker's index of timestamps: no record is read.
        """
        asked = {KafkaTopicPartition(*tp): OffsetSpec.max_timestamp() for tp in partitions}
        futures = self._admin.list_offsets(asked, request_timeout=REQUEST_SECONDS) if asked else {}
        try:
            stamps = [future.result().timestamp for future in futures.values()]
        except KafkaException as error:
            raise self._named(error, "asking for the newest timestamps") from error
        newest = max((stamp for stamp in stamps if stamp and stamp > 0), default=None)
        return None if newest is None else newest / 1000 - time.time()

    def _config(self, resource: ConfigResource) -> Future[Mapping[str, Any]]:
        asked: dict[ConfigResource, Any] = self._admin.describe_configs([resource], request_timeout=REQUEST_SECONDS)
        future: Future[Mapping[str, Any]] = asked[resource]
        return future

    def _answer(self, future: Future[Mapping[str, Any]], right: str, what: str) -> dict[str, Any] | Untold:
        try:
            return {name: one.value for name, one in future.result().items() if one.value is not None}
        except KafkaException as error:
            return self._untold(error, right, what)

    def _untold(self, error: KafkaException, right: str, what: str) -> Untold:
        cause = error.args[0]
        if cause.code() in _MAY_NOT:
            return Untold(f"this login needs {right} on {what} ({cause.name()})")
        if cause.code() == KafkaError.INVALID_REQUEST or cause.code() == KafkaError.UNSUPPORTED_VERSION:
            return Untold(f"this broker does not know the question ({cause.name()})")
        raise self._named(error, f"asking how {what} is set up") from error

    def _named(self, error: KafkaException, doing: str) -> Exception:
        self._admin.poll(0)  # serves what the client has to say
        return self._heard.named(error, doing)
