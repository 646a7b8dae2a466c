"""Start a consumer group at the offsets at which another engine stopped: ``kafka-liveness start``.

Must not change a group that has commits, nor start one where records would be skipped.
"""

from __future__ import annotations

import json
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core.commit_metadata import GroupOrigin, LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import check_group_id, format_count, join_some
from kafka_liveness_dagster.core.offsets import MAX_OFFSET, MAX_PARTITION, TopicPartition
from kafka_liveness_dagster.kafka.successor import commit_offsets, require_idle

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from kafka_liveness_dagster.kafka.admin import Cluster

Offsets = dict[TopicPartition, int]
_FORMAT = '{"orders": {"0": 70, "1": 66}}'


def read_group(cluster: Cluster, group_id: str, topics: Collection[str]) -> Offsets:
    """Return the committed offsets of a group, of these topics or of all.

    Raises:
        InvalidSettingError: the group has members, or no commits.
    """
    check_group_id(group_id)
    require_idle(cluster, [group_id])
    found = cluster.commits(group_id, cluster.partitions(sorted(topics) or None))
    if not found:
        raise InvalidSettingError(
            f"Group {group_id} has no committed offsets{' of these topics' if topics else ''}. Nothing was "
            "changed. Fix: check the name with `kafka-consumer-groups --list`."
        )
    return {tp: commit.offset for tp, commit in found.items()}


def read_checkpoint(folder: Path) -> tuple[Offsets, str]:
    """Return the end offsets of the last finished batch of a Structured Streaming query.

    Also return a warning, empty as a rule: a later batch was planned, and its end is not recorded.

    Args:
        folder: the query's ``checkpointLocation``, with the folders ``offsets`` and ``commits``.

    Raises:
        InvalidSettingError: the folder is not a checkpoint of a query that reads from Kafka.
    """
    finished, planned = (
        sorted(int(file.name) for file in (folder / kind).glob("*") if file.name.isdecimal())
        for kind in ("commits", "offsets")
    )
    if not finished or not (file := folder / "offsets" / str(finished[-1])).is_file():
        raise InvalidSettingError(
            f"{folder} is not a checkpoint with a finished batch: wanted the folders offsets and commits. "
            "Nothing was changed. Fix: name the query's checkpointLocation, or a copy of it."
        )
    offsets: Offsets = {}
    for line in file.read_text(encoding="utf-8").splitlines()[2:]:  # after a version and the metadata
        if line.strip() != "-":  # a source without data
            offsets |= _parse(line, str(file))
    later = [batch for batch in planned if batch > finished[-1]]
    warning = (
        f"batch {later[-1]} of the query was planned and is not recorded as finished: its rows may be in the "
        "old table; its records are read again"
        if later
        else ""
    )
    return offsets, warning


def read_file(file: Path) -> Offsets:
    """Return the offsets of a JSON file.

    Raises:
        InvalidSettingError: the file has another format.
    """
    return _parse(file.read_text(encoding="utf-8"), str(file))


def _parse(text: str, where: str) -> Offsets:
    try:
        found: Any = json.loads(text)
        offsets = {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in found.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise InvalidSettingError(
            f"{where} has {text[:60]!r}: wanted topics with an offset for each partition, like {_FORMAT}. "
            "Nothing was changed."
        ) from None
    wrong = [
        tp
        for tp, offset in offsets.items()
        if not (0 <= offset <= MAX_OFFSET and 0 <= tp.partition <= MAX_PARTITION)
    ]
    if wrong:
        raise InvalidSettingError(
            f"{where} has the offset {offsets[wrong[0]]} for {wrong[0]}: wanted an offset from 0. "
            "Nothing was changed."
        )
    return offsets


@dataclass(frozen=True)
class GroupStart:
    """The offsets at which a group is to start, checked against the broker.

    Attributes:
        without: partitions of the same topics for which no offset is given.
    """

    cluster: Cluster
    group_id: str
    offsets: Offsets
    _: KW_ONLY
    log_bounds: Mapping[TopicPartition, tuple[int, int]]
    without: tuple[TopicPartition, ...]

    @classmethod
    def check(cls, cluster: Cluster, group_id: str, offsets: Offsets) -> GroupStart:
        """Check the offsets against the group and the logs; changes nothing.

        Raises:
            InvalidSettingError: the group has members or commits, or an offset is not in its log.
            TopicNotFoundError: a topic does not exist.
        """
        check_group_id(group_id)
        require_idle(cluster, [group_id])
        known = cluster.partitions(sorted({tp.topic for tp in offsets}))
        _refuse(sorted(offsets.keys() - set(known)), "no such partition at the broker", "check the topic")
        _refuse(
            sorted(cluster.commits(group_id, known)),
            f"group {group_id} has commits already",
            "start a new group_id, "
            "or delete the group's offsets with `kafka-consumer-groups --delete-offsets`",
        )
        bounds = cluster.log_bounds(offsets)
        _refuse(
            [
                f"{tp} at {offset}, log end {bounds[tp][1]}"
                for tp, offset in offsets.items()
                if offset > bounds[tp][1]
            ],
            "the offset is above the log end",
            "check that the topic was not deleted and created again",
        )
        _refuse(
            [
                f"{tp} at {offset}, log start {bounds[tp][0]}"
                for tp, offset in offsets.items()
                if offset < bounds[tp][0]
            ],
            "the broker has deleted records that were not read",
            "start at the log start with --from-file, once the gap is known to your users",
        )
        without = tuple(sorted(set(known) - offsets.keys()))
        return cls(cluster, group_id, offsets, log_bounds=bounds, without=without)

    def lines(self) -> Iterator[str]:
        """Describe the start of each partition."""
        for tp, offset in sorted(self.offsets.items()):
            yield f"{tp}: starts at {offset}, {self.log_bounds[tp][1] - offset:,} offsets to read"
        if self.without:
            yield f"{join_some(self.without)}: no offset is known; auto_offset_reset decides"

    def as_json(self, warning: str) -> dict[str, Any]:
        """Return the group and its start offsets."""
        offsets: dict[str, dict[str, int]] = {}
        for tp, offset in sorted(self.offsets.items()):
            offsets.setdefault(tp.topic, {})[str(tp.partition)] = offset
        return {
            "group": self.group_id,
            "offsets": offsets,
            "partitions_without_offset": list(map(str, self.without)),
            "warnings": [warning] if warning else [],
        }

    def commit(self) -> str:
        """Commit the offsets as the beginning of the group, and return an outcome.

        Raises:
            CommitRefusedError: the broker refused; the command can be repeated.
        """
        ids = self.cluster.topic_ids({tp.topic for tp in self.offsets})
        texts = {
            tp: LiveCommitMetadata(
                OwnerState.RELEASED, "0" * 8, origin=GroupOrigin(offset, ids[tp.topic])
            ).encode()
            for tp, offset in self.offsets.items()
        }
        commit_offsets(
            self.cluster, self.group_id, {tp: (offset, texts[tp]) for tp, offset in self.offsets.items()}
        )
        count = format_count(len(self.offsets), "partition")
        return (
            f"group {self.group_id} starts at these offsets of {count}. After its first run "
            f"`kafka-liveness audit {self.group_id}` certifies each partition from there."
        )


def _refuse(found: Iterable[object], why: str, fix: str) -> None:
    if texts := list(map(str, found)):
        raise InvalidSettingError(f"{join_some(texts)}: {why}. Nothing was changed. Fix: {fix}.")
