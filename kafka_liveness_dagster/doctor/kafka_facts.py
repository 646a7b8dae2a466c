"""Collect facts on the configuration of the brokers, for ``doctor.kafka_rules``.

Each request has a timeout. Facts that the broker refuses are ``Unavailable``, with the right that the login
lacks. Changes nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec

from kafka_liveness_dagster.doctor.rules import Unavailable
from kafka_liveness_dagster.kafka.admin import REQUEST_SECONDS
from kafka_liveness_dagster.kafka.clients import admin_client

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Future

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.kafka.settings import KafkaSettings

_RESOURCE_TYPE = ConfigResource.Type
_ACCESS_DENIED = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_OFFSETS_TOPIC_NAME = "__consumer_offsets"
_CLUSTER_NAME = "the cluster"


class ClusterConfig:
    """The configuration of a cluster, as its brokers return it.

    Every method raises ``BrokerUnreachableError`` within ``REQUEST_SECONDS`` if no broker responds, and
    ``AccessRefusedError`` if the brokers reject the login.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._admin, self._error_listener = admin_client(settings)

    def brokers(self) -> tuple[int, ...]:
        """Return the ids of the brokers, the lowest first."""
        try:
            return tuple(sorted(self._admin.list_topics(timeout=REQUEST_SECONDS).brokers))
        except KafkaException as error:
            raise self._to_package_error(error, "listing its brokers") from error

    def cluster(self, brokers: Iterable[int], names: Iterable[str]) -> dict[str, Any] | Unavailable:
        """Return the settings of the broker with the lowest id.

        ``differing`` has the settings of ``names`` that differ between brokers, with each broker's value.
        """
        asked = {broker: ConfigResource(_RESOURCE_TYPE.BROKER, str(broker)) for broker in brokers}
        # All requests are sent first: one after the other, slow brokers would add up
        futures = {broker: self._describe_config(one) for broker, one in asked.items()}
        told = {
            broker: self._result_or_unavailable(future, "DESCRIBE_CONFIGS", _CLUSTER_NAME)
            for broker, future in futures.items()
        }
        first = next(iter(told.values()))
        if isinstance(first, Unavailable):
            return first
        configs = {broker: one for broker, one in told.items() if not isinstance(one, Unavailable)}
        values = {
            name: {broker: one.get(name, "unknown") for broker, one in configs.items()} for name in names
        }
        return {**first, "differing": {name: of for name, of in values.items() if len(set(of.values())) > 1}}

    def topic(self, name: str) -> dict[str, Any] | Unavailable:
        """Return a topic's effective settings: its own or the broker's."""
        future = self._describe_config(ConfigResource(_RESOURCE_TYPE.TOPIC, name))
        return self._result_or_unavailable(future, "DESCRIBE_CONFIGS", f"topic {name}")

    def group(self, group_id: str) -> dict[str, Any] | Unavailable:
        """Return the settings of a group under KIP-848; the group need not exist."""
        future = self._describe_config(ConfigResource(_RESOURCE_TYPE.GROUP, group_id))
        return self._result_or_unavailable(future, "DESCRIBE_CONFIGS", f"group {group_id}")

    def offsets_topic(self, cluster: Mapping[str, Any] | Unavailable) -> dict[str, Any] | Unavailable:
        """Return copies and ``min.insync.replicas`` of the topic that stores all commits.

        Before the topic is created, these are the values that it will get.

        Args:
            cluster: the brokers' settings.
        """
        future = self._admin.describe_topics(
            TopicCollection([_OFFSETS_TOPIC_NAME]), request_timeout=REQUEST_SECONDS
        )[_OFFSETS_TOPIC_NAME]
        try:
            found: Any = future.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                if isinstance(cluster, Unavailable):
                    return cluster
                names = ("min.insync.replicas", "offsets.topic.replication.factor")
                in_sync, copies = (
                    cluster.get(name, Unavailable(f"the broker does not return {name} to this client"))
                    for name in names
                )
                return {"copies": copies, "min.insync.replicas": in_sync}
            return self._unavailable(error, "DESCRIBE", f"topic {_OFFSETS_TOPIC_NAME}")
        config = self.topic(_OFFSETS_TOPIC_NAME)
        if isinstance(config, Unavailable):
            return config
        return {**config, "copies": min(len(one.replicas) for one in found.partitions)}

    def clock_ahead_seconds(self, partitions: Iterable[TopicPartition]) -> float | None:
        """Return by how many seconds these partitions' newest timestamp is ahead of this clock.

        None without a record. Uses the broker's index of timestamps and reads no record.
        """
        asked = {KafkaTopicPartition(*tp): OffsetSpec.max_timestamp() for tp in partitions}
        futures = self._admin.list_offsets(asked, request_timeout=REQUEST_SECONDS) if asked else {}
        try:
            stamps = [future.result().timestamp for future in futures.values()]
        except KafkaException as error:
            raise self._to_package_error(error, "reading the newest timestamps") from error
        newest = max((stamp for stamp in stamps if stamp and stamp > 0), default=None)
        return None if newest is None else newest / 1000 - time.time()

    def _describe_config(self, resource: ConfigResource) -> Future[Mapping[str, Any]]:
        asked: dict[ConfigResource, Any] = self._admin.describe_configs(
            [resource], request_timeout=REQUEST_SECONDS
        )
        future: Future[Mapping[str, Any]] = asked[resource]
        return future

    def _result_or_unavailable(
        self, future: Future[Mapping[str, Any]], right: str, what: str
    ) -> dict[str, Any] | Unavailable:
        try:
            return {name: one.value for name, one in future.result().items() if one.value is not None}
        except KafkaException as error:
            return self._unavailable(error, right, what)

    def _unavailable(self, error: KafkaException, right: str, what: str) -> Unavailable:
        cause = error.args[0]
        if cause.code() in _ACCESS_DENIED:
            return Unavailable(f"this login needs {right} on {what} ({cause.name()})")
        if cause.code() == KafkaError.INVALID_REQUEST or cause.code() == KafkaError.UNSUPPORTED_VERSION:
            return Unavailable(f"this broker does not support the request ({cause.name()})")
        raise self._to_package_error(error, f"reading the config of {what}") from error

    def _to_package_error(self, error: KafkaException, doing: str) -> Exception:
        self._admin.poll(0)  # runs the error callbacks that wait
        return self._error_listener.to_package_error(error, doing)
