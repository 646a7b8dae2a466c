"""Read many groups of one cluster together: one request for what they share, and commits concurrently.

Keeps no client and no thread after a read. An error of one group is a value, and fails no other group.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_metadata import CATCH_UP_SUFFIX
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.kafka.admin import REQUEST_SECONDS, Cluster
from kafka_liveness_dagster.kafka.errors import (
    AccessRefusedError,
    BrokerUnreachableError,
    KafkaRefusedError,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.kafka.group_description import CommittedOffset, GroupDescription

_READERS = 8  # each has 3 threads, one more for every broker, and 2 connections, for some 20 ms
_COMMITS_SECONDS = 2 * REQUEST_SECONDS  # of all groups, because a sensor tick has 60 s


@dataclass
class FirstReads:
    """The reads of one group that a sensor tick made together with those of other groups.

    Attributes:
        partitions: partitions of the group's topics.
        bounds: log start and log end of each partition.
        state: state in the list of groups; empty for a group that is not in it.
        commits: live commit log and catch-up commit log; None until they are read.
        description: state and members; None until they are read.
        error: first error of these reads.
    """

    partitions: list[TopicPartition] = field(default_factory=list)
    bounds: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    state: str = ""
    commits: dict[str, dict[TopicPartition, CommittedOffset]] | None = None
    description: GroupDescription | None = None
    error: KafkaLivenessError | None = None

    @property
    def fingerprint(self) -> tuple[str, tuple[tuple[TopicPartition, tuple[int, int]], ...]]:
        """The state and the log bounds, to compare with another tick."""
        return self.state, tuple(self.bounds.items())


class SharedTopicIds:
    """The ids of topics at one sensor tick, read when the first group needs one.

    Args:
        cluster: cluster of the topics.
        topics: topics of all groups.
    """

    def __init__(self, cluster: Cluster, topics: Collection[str]) -> None:
        self._cluster = cluster
        self._topics = topics
        self._known: dict[str, str] | None = None

    def read(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of these topics.

        Raises:
            TopicNotFoundError: one of them is gone.
        """
        if self._known is None:
            try:
                self._known = self._cluster.topic_ids(self._topics)
            except KafkaLivenessError:  # a topic of another group is gone: each group reads its own
                self._known = {}
        if self._known.keys() >= set(topics):
            return {topic: self._known[topic] for topic in topics}
        return self._cluster.topic_ids(topics)


class GroupCluster(Cluster):
    """The cluster of one group, which returns each of its first reads once; then it reads by itself."""

    def __init__(self, cluster: Cluster, first: FirstReads, topic_ids: SharedTopicIds) -> None:
        self.__dict__.update(cluster.__dict__)  # the same client, and the same knowledge of partitions
        self._partitions: list[TopicPartition] | None = first.partitions
        self._bounds: dict[TopicPartition, tuple[int, int]] | None = first.bounds
        self._commits = dict(first.commits or {})
        self._description = first.description
        self._topic_ids = topic_ids

    def partitions(self, topics: Sequence[str] | None) -> list[TopicPartition]:
        """Return all partitions of these topics, which are the group's."""
        found, self._partitions = self._partitions, None
        return super().partitions(topics) if found is None else found

    def log_bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return log start and log end of each partition."""
        partitions = list(partitions)
        found, self._bounds = self._bounds, None
        if found is None or not found.keys() >= set(partitions):
            return super().log_bounds(partitions)
        return {tp: found[tp] for tp in partitions}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return Kafka's id of each topic, from one request for the topics of all groups."""
        return self._topic_ids.read(list(topics))

    def find_coordinator(self, group_id: str) -> None:
        """Do nothing: ``commits`` keeps no client whose request would wait for the coordinator."""

    def commits(
        self, group_id: str, partitions: Iterable[TopicPartition], *, keep_client: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group; partitions without a commit are left out."""
        found = self._commits.pop(group_id, None)
        if found is None:
            return super().commits(group_id, partitions, keep_client=keep_client)
        return {tp: found[tp] for tp in partitions if tp in found}

    def group(self, group_id: str) -> GroupDescription:
        """Return the group's state and members."""
        found, self._description = self._description, None
        return super().group(group_id) if found is None else found


class GroupReads:
    """The reads of one sensor tick.

    Args:
        cluster: cluster of all groups.
        topics: topics of each group.

    Attributes:
        groups: the reads of each group.

    Raises:
        BrokerUnreachableError: no broker responds.
    """

    def __init__(self, cluster: Cluster, topics: Mapping[str, Sequence[str]]) -> None:
        self._cluster = cluster
        every = {topic for its_own in topics.values() for topic in its_own}
        self._topic_ids = SharedTopicIds(cluster, every)
        self.groups: dict[str, FirstReads] = {}
        for group_id, found in cluster.partitions_of_groups(topics).items():
            self.groups[group_id] = (
                FirstReads(error=found) if isinstance(found, KafkaLivenessError) else FirstReads(found)
            )

    def read_shared(self) -> None:
        """Read the state of every group and the log bounds of every topic, in one request for a broker.

        If the broker refuses the list of groups, each group is described.
        """
        try:
            states = self._cluster.group_states()
        except (AccessRefusedError, KafkaRefusedError):
            self.read_descriptions(self.groups)
            states = {
                group_id: one.description.state for group_id, one in self.groups.items() if one.description
            }
        for group_id, one in self.groups.items():
            one.state = states.get(group_id, "")
        self.read_log_bounds(self.groups)

    def read_log_bounds(self, group_ids: Collection[str]) -> None:
        """Read the log bounds of these groups: after their commits, which may not exceed a log end."""
        wanted = {tp: None for group_id in group_ids for tp in self.groups[group_id].partitions}
        bounds = self._cluster.log_bounds_or_errors(wanted)
        for group_id in group_ids:
            one = self.groups[group_id]
            found = {tp: bounds[tp] for tp in one.partitions}
            errors = [bound for bound in found.values() if isinstance(bound, KafkaLivenessError)]
            one.error = one.error or next(iter(errors), None)
            one.bounds = {
                tp: bound for tp, bound in found.items() if not isinstance(bound, KafkaLivenessError)
            }

    def read_commits(self, group_ids: Collection[str], kept: Collection[str]) -> None:
        """Read both commit logs of these groups, some at a time.

        Args:
            group_ids: groups to read.
            kept: groups whose clients are kept open, because each tick reads them.
        """
        end = time.monotonic() + _COMMITS_SECONDS
        wanted = [group_id for group_id in group_ids if self.groups[group_id].error is None]
        with ThreadPoolExecutor(_READERS, "kafka-liveness-commits") as pool:
            for group_id, found in zip(
                wanted, pool.map(lambda one: self._commits(one, end, keep=one in kept), wanted), strict=True
            ):
                if isinstance(found, KafkaLivenessError):
                    self.groups[group_id].error = found
                else:
                    self.groups[group_id].commits = found

    def read_descriptions(self, group_ids: Collection[str]) -> None:
        """Read state and members of these groups."""
        wanted = [group_id for group_id in group_ids if self.groups[group_id].error is None]
        for group_id, found in self._cluster.groups(wanted).items():
            if isinstance(found, KafkaLivenessError):
                self.groups[group_id].error = found
            else:
                self.groups[group_id].description = found

    def cluster_of(self, group_id: str) -> GroupCluster:
        """Return the cluster of one group with its reads.

        Raises:
            KafkaLivenessError: one of them failed.
        """
        one = self.groups[group_id]
        if one.error is not None:
            raise one.error
        return GroupCluster(self._cluster, one, self._topic_ids)

    def _commits(
        self, group_id: str, end: float, *, keep: bool
    ) -> dict[str, dict[TopicPartition, CommittedOffset]] | KafkaLivenessError:
        found = {}
        for commit_log in (group_id, group_id + CATCH_UP_SUFFIX):
            if time.monotonic() > end:
                return BrokerUnreachableError(
                    f"the commits of group {group_id} were not read: those of other groups took "
                    f"{_COMMITS_SECONDS:.0f} s. Nothing was changed; the next tick reads them. Fix: check "
                    "the brokers, or watch fewer groups with one sensor"
                )
            try:
                found[commit_log] = self._cluster.commits(
                    commit_log, self.groups[group_id].partitions, keep_client=keep
                )
            except KafkaLivenessError as error:
                return error
        return found
