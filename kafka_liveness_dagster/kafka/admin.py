"""Read the state of a cluster: topics, log bounds, commits and members, each request with a time limit.

Never joins a group and never commits. The number of requests does not grow with the number of partitions.
Reads of several groups return an error in place of a value, so that one group cannot fail the others.
"""

from __future__ import annotations

import difflib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec

from kafka_liveness_dagster.core.commit_metadata import (
    CATCH_UP_SUFFIX,
    external_commit_error,
)
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.names import escape
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.core.timeouts import BrokerLimits, ConsumerGroupConfig
from kafka_liveness_dagster.kafka.clients import admin_client, close_readers, commit_reader, new_commit_reader
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, KafkaRefusedError, TopicNotFoundError
from kafka_liveness_dagster.kafka.group_description import (
    CommittedOffset,
    GroupDescription,
    MemberDescription,
    decode_partition_state,
)
from kafka_liveness_dagster.kafka.settings import REQUEST_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kafka_liveness_dagster.core.partition_state import PartitionState
    from kafka_liveness_dagster.kafka.settings import KafkaSettings

_Value = TypeVar("_Value")
REQUEST_SECONDS = REQUEST_MS / 1000
_RECENT_SECONDS = 0.1  # a broker that responded since counts as available
_LIBRDKAFKA_MAX_SESSION_MS = 3_600_000
_APACHE_LIMITS = BrokerLimits(6_000, 1_800_000)
_APACHE_GROUP_CONFIG = ConsumerGroupConfig(session_ms=45_000, heartbeat_ms=5_000)
_OFFSET_SPECS = (OffsetSpec.earliest(), OffsetSpec.latest())
_NO_TOPIC_ID = "A" * 22  # of a broker without KIP-516
_URL_SAFE = str.maketrans("+/", "-_")  # as Kafka writes its ids; librdkafka does otherwise
_GROUP_KEYS = ("session.timeout", "heartbeat.interval")


class Cluster:
    """Read-only requests to a Kafka cluster.

    Every method raises ``BrokerUnreachableError`` within ``REQUEST_SECONDS`` when no broker answers.

    Raises:
        InvalidSettingError: librdkafka refuses a setting.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self._known_partitions: set[TopicPartition] = set()
        self._responded_at = -1.0
        self._admin, self._error_listener = admin_client(settings)

    def topics(self) -> list[str]:
        """Return all topics that this client may see."""
        return sorted(self._metadata().topics)

    def partitions(self, topics: Sequence[str] | None) -> list[TopicPartition]:
        """Return all partitions of these topics, or of all topics that this client may see.

        One request, so a topic that is deleted meanwhile is in it or not.

        Args:
            topics: names of topics; None for all.

        Raises:
            TopicNotFoundError: naming the topics that resemble a missing one.
        """
        known = self._metadata().topics
        return self._value(self._partitions_in(known, sorted(known) if topics is None else topics))

    def partitions_of_groups(
        self, topics: Mapping[str, Sequence[str]]
    ) -> dict[str, list[TopicPartition] | KafkaLivenessError]:
        """Return all partitions of the topics of each group, in one request."""
        known = self._metadata().topics
        return {group_id: self._partitions_in(known, its_own) for group_id, its_own in topics.items()}

    def _partitions_in(
        self, known: Mapping[str, Any], topics: Sequence[str]
    ) -> list[TopicPartition] | KafkaLivenessError:
        for topic in topics:
            if topic not in known:
                return self._missing_topic(topic, known)
        found = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in sorted(known[topic].partitions)
        ]
        self._known_partitions.update(found)
        return found

    def _missing_topic(self, topic: str, known: Mapping[str, Any]) -> TopicNotFoundError:
        near = difflib.get_close_matches(topic, known, n=3)
        hint = f"; did you mean {' or '.join(near)}" if near else f"; the cluster has {len(known)} topics"
        return TopicNotFoundError(
            f"topic {topic!r} does not exist at "
            f"{self.settings.bootstrap_servers}{self.settings.security.hidden_reason}{hint}. A "
            "group that waits for a topic would look healthy and consume nothing. Fix: create the "
            "topic, or correct its name"
        )

    def broker_limits(self) -> BrokerLimits:
        """Return the session timeouts that the broker allows; Apache Kafka's defaults if it refuses."""
        broker = ConfigResource(ConfigResource.Type.BROKER, str(min(self._metadata().brokers)))
        try:
            found = self._admin.describe_configs([broker], request_timeout=REQUEST_SECONDS)[broker].result()
            shortest, longest = (
                int(found[f"group.{end}.session.timeout.ms"].value) for end in ("min", "max")
            )
            minutes = int(found["offsets.retention.minutes"].value)
        except (KafkaException, KeyError, TypeError):
            return _APACHE_LIMITS  # managed clusters refuse the request; the broker then checks at the join
        return BrokerLimits(shortest, min(longest, _LIBRDKAFKA_MAX_SESSION_MS), 60.0 * minutes)

    def consumer_group_config(self, group_id: str) -> ConsumerGroupConfig:
        """Return session timeout and heartbeat interval of a group under KIP-848; it need not exist."""
        group = ConfigResource(ConfigResource.Type.GROUP, group_id)
        asked = self._admin.describe_configs([group], request_timeout=REQUEST_SECONDS)[group]
        try:
            found = self._result(asked, f"reading the config of group {group_id}")
            session, heartbeat = (int(found[f"consumer.{k}.ms"].value) for k in _GROUP_KEYS)
        except (KafkaRefusedError, KeyError, TypeError):
            # Managed clusters refuse the request, and older brokers do not support it. The broker applies its
            # own values anyway; ours only limit how short a poll interval and how long a request may be
            return _APACHE_GROUP_CONFIG
        return ConsumerGroupConfig(session, heartbeat)

    def log_bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return log start and log end (last stable offset, ``read_committed``) of each partition."""
        return {tp: self._value(one) for tp, one in self.log_bounds_or_errors(partitions).items()}

    def log_bounds_or_errors(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int] | KafkaLivenessError]:
        """Return the log bounds of each partition, or the error of its leader."""
        if not (partitions := list(partitions)):
            return {}
        if not self._known_partitions.issuperset(partitions):
            self._metadata()  # else the client refuses partitions added after it first read their topic
        # Removed until the response: the client's leader epochs may predate a broker's restart
        self._known_partitions.difference_update(partitions)
        every = [{KafkaTopicPartition(*tp): spec for tp in partitions} for spec in _OFFSET_SPECS]
        level = IsolationLevel.READ_COMMITTED  # both requests are sent before the first response
        asked = [
            self._admin.list_offsets(one, isolation_level=level, request_timeout=REQUEST_SECONDS)
            for one in every
        ]
        starts, ends = ({(tp.topic, tp.partition): future for tp, future in one.items()} for one in asked)
        found: dict[TopicPartition, tuple[int, int] | KafkaLivenessError] = {}
        for tp in partitions:
            doing = f"reading the log bounds of {tp.topic}"
            try:
                start, end = (self._result(one[tp], doing).offset for one in (starts, ends))
                if min(start, end) < 0:  # no offset, and no error
                    raise self._to_package_error(KafkaError(KafkaError.LEADER_NOT_AVAILABLE), doing)
            except KafkaLivenessError as error:
                found[tp] = error
                continue
            found[tp] = start, end
            self._known_partitions.add(tp)
            self._responded_at = time.monotonic()
        return found

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return Kafka's id of each topic, by which a recreated topic is recognized (KIP-516).

        Empty where the broker returns none.

        Raises:
            TopicNotFoundError: a topic is gone.
        """
        return self._describe_topic_ids(self._request_topics(set(topics)))

    def _request_topics(self, topics: set[str]) -> dict[str, Any]:
        if not topics:
            return {}
        asked: dict[str, Any] = self._admin.describe_topics(
            TopicCollection(sorted(topics)), request_timeout=REQUEST_SECONDS
        )
        return asked

    def _describe_topic_ids(self, asked: Mapping[str, Any]) -> dict[str, str]:
        found = {}
        for topic, future in asked.items():
            try:
                topic_id = str(future.result().topic_id or "").translate(_URL_SAFE)
            except KafkaException as error:
                refused = self._to_package_error(error, f"reading the id of topic {topic}")
                if not isinstance(refused, KafkaRefusedError):
                    raise refused from error
                # A broker without this request: a recreated topic cannot be recognized by its id
                topic_id = ""
            found[topic] = "" if topic_id == _NO_TOPIC_ID else topic_id
        return found

    def find_coordinator(self, group_id: str) -> None:
        """Start to find the coordinator of a group, while other requests run.

        This takes some 20 ms, unless the client found it recently.
        """
        commit_reader(group_id, self.settings)

    def commits(
        self, group_id: str, partitions: Iterable[TopicPartition], *, keep_client: bool = True
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group; partitions without a commit are left out.

        Args:
            group_id: group or catch-up commit log.
            partitions: partitions to read.
            keep_client: whether to keep the group's client open for the next read. A new one takes some 20
                ms, and 2 ms of processor time.
        """
        client = (commit_reader if keep_client else new_commit_reader)(group_id, self.settings)
        try:
            found = client.committed([KafkaTopicPartition(*tp) for tp in partitions], timeout=REQUEST_SECONDS)
        except KafkaException as error:
            raise self._to_package_error(
                error, f"reading the committed offsets of group {group_id}"
            ) from error
        if refused := next((tp.error for tp in found if tp.error is not None), None):
            raise self._to_package_error(refused, f"reading the committed offsets of group {group_id}")
        return {
            TopicPartition(tp.topic, tp.partition): CommittedOffset(tp.offset, tp.metadata or "")
            for tp in found
            if tp.offset >= 0
        }

    def partition_states(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, PartitionState]:
        """Return both commit logs, the log bounds and the topic's id of these partitions.

        An external commit in the catch-up commit log marks no offset as done: see
        ``CatchUpCommitMetadata.external``.

        Raises:
            ExternalCommitError: the live commit log has an external commit with metadata.
        """
        if not partitions:
            return {}
        both = (group_id, group_id + CATCH_UP_SUFFIX)
        for group in both:
            self.find_coordinator(group)
        live, catch_up = (self.commits(group, partitions) for group in both)
        states = {tp: decode_partition_state(live.get(tp), catch_up.get(tp)) for tp in partitions}
        for tp, state in states.items():
            if state.external_live_commit is not None:
                raise external_commit_error(
                    group_id, tp, state.external_live_commit, servers=self.settings.bootstrap_servers
                )
        return self.with_log_bounds(states)

    def with_log_bounds(
        self, states: Mapping[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, PartitionState]:
        """Return these states with log start, log end and topic id as of now."""
        if not states:
            return {}
        asked = self._request_topics({tp.topic for tp in states})  # runs while the log bounds are read
        bounds = self.log_bounds(states)
        ids = self._describe_topic_ids(asked)
        return {
            tp: replace(state, log_start=bounds[tp][0], log_end=bounds[tp][1], topic_id=ids[tp.topic])
            for tp, state in states.items()
        }

    def group(self, group_id: str) -> GroupDescription:
        """Return a group's state and members; ``DEAD`` and no members if it does not exist."""
        return self._value(self.groups([group_id])[group_id])

    def groups(self, group_ids: Sequence[str]) -> dict[str, GroupDescription | KafkaLivenessError]:
        """Return state and members of each group; all requests are sent before the first response."""
        if not group_ids:
            return {}
        if time.monotonic() - self._responded_at > _RECENT_SECONDS:
            # Raises while no broker responds; without it the next call ends the process (librdkafka#4605)
            self._metadata()
        asked = self._admin.describe_consumer_groups(list(group_ids), request_timeout=REQUEST_SECONDS)
        found: dict[str, GroupDescription | KafkaLivenessError] = {}
        for group_id, future in asked.items():
            try:
                found[group_id] = _to_description(self._result(future, f"describing group {group_id}"))
            except KafkaLivenessError as error:
                found[group_id] = error
        return found

    def group_states(self) -> dict[str, str]:
        """Return the state of each group that a responding coordinator lists, in one request for a broker.

        Without the groups of a coordinator that does not respond: ``groups`` has their errors.
        """
        doing = "listing the groups"
        found = self._result(self._admin.list_consumer_groups(request_timeout=REQUEST_SECONDS), doing)
        return {one.group_id: one.state.name for one in found.valid}

    def members(self, group_id: str) -> tuple[MemberDescription, ...]:
        """Return the members of a group; none if it does not exist."""
        return self.group(group_id).members

    @staticmethod
    def _value(found: _Value | KafkaLivenessError) -> _Value:
        if isinstance(found, KafkaLivenessError):
            raise found
        return found

    def _metadata(self) -> Any:
        try:
            found = self._admin.list_topics(timeout=REQUEST_SECONDS)
        except KafkaException as error:
            raise self._to_package_error(error, "listing the topics") from error
        self._responded_at = time.monotonic()
        return found

    def _result(self, future: Any, doing: str) -> Any:
        try:
            return future.result()
        except KafkaException as error:
            raise self._to_package_error(error, doing) from error

    def _to_package_error(self, error: KafkaException | KafkaError, doing: str) -> KafkaLivenessError:
        self._admin.poll(0)  # calls the error listener, which then explains this error
        named = self._error_listener.to_package_error(error, doing)
        if isinstance(named, BrokerUnreachableError):
            close_readers(self.settings)
        return named


def _to_description(group: Any) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member.member_id,
            escape(member.client_id),  # any client that may join chooses it; our own ids stay unchanged
            escape(member.host),
            partitions=tuple(
                TopicPartition(tp.topic, tp.partition) for tp in member.assignment.topic_partitions
            ),
            group_instance_id=escape(member.group_instance_id or "") or None,
        )
        for member in group.members
    )
    return GroupDescription(group.state.name, members)
