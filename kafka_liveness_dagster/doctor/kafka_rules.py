"""Rules for a Kafka cluster: it keeps what this package writes to it, and for long enough.

Nothing is queried here. Facts have the names of Kafka's settings, and texts for values, as the broker tells
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_metadata import MAX_METADATA_BYTES
from kafka_liveness_dagster.core.names import format_duration
from kafka_liveness_dagster.core.timeouts import DEFAULT_SESSION_SECONDS
from kafka_liveness_dagster.doctor.rules import FAIL, OK, WARN, CheckResult, Rule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafka_liveness_dagster.core.health import Verdict

_JAVAS_SESSION_MS = 45_000
_MIN_COPIES = 3
_MIN_IN_SYNC = 2
_WEEK = 7 * 86_400.0
_WEEKEND = 3 * 86_400.0
_NEVER = -1
_TIGHT_SHARE = 0.5  # of the retention
_TOO_LATE_SHARE = 0.9
_MAX_AHEAD_SECONDS = 5.0  # an honest producer's clock may be off by some


def _agreement(differing: Mapping[str, Mapping[int, str]]) -> CheckResult:
    # Rule 1: a group's coordinator may be any broker, and a topic's leader too
    if not differing:
        return OK("all brokers have the same settings")
    told = "; ".join(
        f"{name} is {', '.join(f'{value} on broker {broker}' for broker, value in sorted(values.items()))}"
        for name, values in sorted(differing.items())
    )
    return WARN(
        told,
        "set them alike on every broker: which one counts depends on who coordinates the group, and "
        "changes when that broker is restarted. What follows is judged by the broker with the lowest id",
    )


def _sessions(shortest: str, longest: str) -> CheckResult:
    # Rule 2: the sessions that docs/liveness.md speaks of have to be allowed
    least = int(shortest)
    most = int(longest)
    ours = round(DEFAULT_SESSION_SECONDS * 1000)
    found = f"session timeouts of {least:,} to {most:,} ms"
    if least > ours:
        return WARN(
            found,
            f"lower group.min.session.timeout.ms to {ours:,} or less: a dead process that nobody but the "
            f"broker notices holds its partitions for {format_duration(least / 1000)}, whatever "
            "session_timeout_seconds says",
        )
    if most < _JAVAS_SESSION_MS:
        return WARN(
            found,
            f"raise group.max.session.timeout.ms to {_JAVAS_SESSION_MS:,} or more: a longer "
            "session_timeout_seconds is refused before joining, and processes whose CPU is throttled need "
            "one",
        )
    return OK(found)


def _metadata(most: str) -> CheckResult:
    # Rule 3: what is pending is in the commits' metadata
    wanted = MAX_METADATA_BYTES + 1
    if int(most) < wanted:
        return FAIL(
            f"offset.metadata.max.bytes is {int(most):,}",
            f"set it to {wanted:,}, Kafka's default: commits hold the pending ranges of a partition, and one "
            "with more of them is refused (OFFSET_METADATA_TOO_LARGE), after which the live lane can "
            "commit nothing",
        )
    return OK(f"{int(most):,} bytes of metadata a commit, some 200 pending ranges a partition")


def _offsets_retention(minutes: str) -> CheckResult:
    # Rule 4: a group that is down for longer forgets where it was, and what it owes
    kept = int(minutes) * 60.0
    if kept < _WEEK:
        return WARN(
            f"offsets.retention.minutes is {int(minutes):,} ({format_duration(kept)})",
            "set it to 10080 (7 days, Kafka's default) or more: a group without members for longer forgets "
            "its position and what it owes, and goes on where auto_offset_reset says",
        )
    return OK(f"commits of a group without members are kept for {format_duration(kept)}")


def _offsets_topic(told_copies: str | int, in_sync: str, brokers: int, is_embedded: bool) -> CheckResult:  # noqa: FBT001
    # Rule 5: commits are as durable as the topic that has them
    copies = int(told_copies)
    found = f"__consumer_offsets: copies {copies}, min.insync.replicas {in_sync}, brokers {brokers}"
    owed = "the commits hold the pending ranges"
    if int(in_sync) > copies:
        return FAIL(found, f"lower min.insync.replicas to {copies} or less: every commit is refused")
    if is_embedded:
        return OK(f"{found}: the embedded broker is for one machine")
    if copies < _MIN_COPIES:
        how = "kafka-reassign-partitions; offsets.topic.replication.factor counts only when the topic is made"
        return WARN(
            found,
            f"give it {_MIN_COPIES} copies ({how}): {owed}, and are lost with the disk of {copies} broker(s)",
        )
    if int(in_sync) < _MIN_IN_SYNC:
        return WARN(
            found,
            f"set min.insync.replicas={_MIN_IN_SYNC} on it: {owed}, and with {in_sync} an acknowledged one "
            "may be on one broker alone",
        )
    return OK(found)


def _elections(unclean: str) -> CheckResult:
    # Rule 6: a log must not become shorter than what was committed
    if unclean == "true":
        return WARN(
            "unclean.leader.election.enable is true",
            (
                "set it to false: a log may be cut below what is committed, and the run then ends with "
                "TopicRecreatedError"
            ),
        )
    return OK("a log is not cut below what is committed")


def _auto_creation(on: str) -> CheckResult:
    # Rule 7: a topic that is deleted stays deleted
    if on == "true":
        return WARN(
            "auto.create.topics.enable is true",
            "set it to false: a producer that knows a deleted topic makes it anew, empty, and its group "
            "then ends with TopicRecreatedError; a misspelled topic waits for records that never come",
        )
    return OK("topics are made on purpose only")


def _group_sessions(session: str, heartbeat: str) -> CheckResult:
    # Rule 8: under KIP-848 both are the group's, and nothing that a resource sets
    session_ms = int(session)
    heartbeat_ms = int(heartbeat)
    found = f"with group_protocol='consumer': session {session_ms:,} ms, heartbeat {heartbeat_ms:,} ms"
    if heartbeat_ms > session_ms // 3:
        return FAIL(
            found,
            "set consumer.heartbeat.interval.ms of the group to a third of consumer.session.timeout.ms at "
            "most: one lost heartbeat must not cost the membership, and a run is refused with this",
        )
    return OK(found)


def _retention(kept_ms: str, offsets_minutes: str) -> CheckResult:
    # Rule 9: crash lag has to be processed before it expires, and be known for as long
    kept = int(kept_ms)
    known = int(offsets_minutes) * 60.0
    if kept == _NEVER:
        return OK("records are kept indefinitely, as far as retention.ms goes")
    seconds = kept / 1000
    if seconds < _WEEKEND:
        return WARN(
            f"retention.ms is {kept:,} ({format_duration(seconds)})",
            f"set it to {round(_WEEKEND * 1000):,} (3 days) or more: what is owed, or waits while the group "
            "is down over a weekend, is deleted before anybody looks",
        )
    if known < seconds:
        return WARN(
            f"records are kept for {format_duration(seconds)}, commits without members for "
            f"{format_duration(known)}",
            f"set offsets.retention.minutes to {round(seconds / 60):,} or more: a group that is down for "
            "longer forgets what it owes while the records are still there",
        )
    return OK(
        f"records are kept for {format_duration(seconds)}, commits without members for "
        f"{format_duration(known)}"
    )


def _backlog(age_seconds: float, kept_ms: str) -> CheckResult:
    # Rule 10: what waits is processed long before it expires
    kept = int(kept_ms) / 1000
    if not age_seconds:
        return OK("nothing waits")
    if int(kept_ms) == _NEVER:
        return OK(
            f"the oldest record that waits is {format_duration(age_seconds)} old; retention.ms deletes none"
        )
    age = format_duration(age_seconds)
    found = f"the oldest record that waits is {age} old, {age_seconds / kept:.0%} of {format_duration(kept)}"
    advice = (
        "materialize the crash lag partitions, let more runs share the lag (max_live_runs), or raise "
        "retention.ms"
    )
    if age_seconds > _TOO_LATE_SHARE * kept:
        return FAIL(found, f"now: {advice}; the broker deletes it at 100%")
    return WARN(found, advice) if age_seconds > _TIGHT_SHARE * kept else OK(found)


def _size(kept_bytes: str) -> CheckResult:
    # Rule 11: bytes say nothing of time
    if int(kept_bytes) == _NEVER:
        return OK("no limit of bytes")
    return WARN(
        f"retention.bytes is {int(kept_bytes):,} a partition",
        "set it to -1, or so large that it never counts: how long crash lag may wait depends on how much "
        "is produced, and is shortest when most is",
    )


def _expiry(verdict: Verdict) -> CheckResult:
    # Rule 12: by offsets, whatever deletes them
    by = {"fine": OK, "warning": WARN, "error": FAIL}[verdict.severity.value]
    return (
        by(verdict.message) if by is OK else by(verdict.message, "`kafka-liveness status` shows each range")
    )


def _clock(ahead_seconds: float | None, kind: str) -> CheckResult:
    # Rule 13: a record of the future is never older than the retention, and no hour is complete before it
    whose = "the broker's clock" if kind == "LogAppendTime" else "a producer's clock"
    if ahead_seconds is None:
        return OK("no record, so no timestamp")
    if ahead_seconds > _MAX_AHEAD_SECONDS:
        return WARN(
            f"the newest timestamp is {format_duration(ahead_seconds)} ahead of this machine's clock "
            f"({kind})",
            (
                f"set {whose} by NTP, and this machine's: retention counts from timestamps, and so do "
                "windows of time"
            ),
        )
    return OK(
        f"no timestamp is of the future ({kind}); by how much {whose} is behind cannot be told without "
        "producing"
    )


def _reads(throttle_seconds: float) -> CheckResult:
    # Rule 14: a quota makes batches slow, whatever their size
    if throttle_seconds:
        return WARN(
            f"a quota delayed a fetch just now by {throttle_seconds:,.2f} s",
            "raise consumer_byte_rate or request_percentage of this login (`kafka-configs --describe "
            "--entity-type users`): a batch takes as long as the quota has it, and smaller ones read no "
            "faster",
        )
    return OK("no quota delayed a fetch just now; which quotas there are the client library cannot list")


CLUSTER = (
    Rule("agreement", ("differing",), _agreement),
    Rule("sessions", ("group.min.session.timeout.ms", "group.max.session.timeout.ms"), _sessions),
    Rule("commit metadata", ("offset.metadata.max.bytes",), _metadata),
    Rule("offsets retention", ("offsets.retention.minutes",), _offsets_retention),
    Rule("elections", ("unclean.leader.election.enable",), _elections),
    Rule("auto creation", ("auto.create.topics.enable",), _auto_creation),
)
OFFSETS_TOPIC = (
    Rule("offsets topic", ("copies", "min.insync.replicas", "brokers", "embedded"), _offsets_topic),
)
GROUP = (
    Rule("sessions", ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"), _group_sessions),
)
BACKLOG = (Rule("expiry", ("expiry",), _expiry),)
TOPIC = (
    Rule("retention", ("retention.ms", "offsets.retention.minutes"), _retention),
    Rule("size", ("retention.bytes",), _size),
    Rule("backlog", ("age seconds", "retention.ms"), _backlog),
    Rule("elections", ("unclean.leader.election.enable",), _elections),
    Rule("clock", ("ahead seconds", "message.timestamp.type"), _clock),
    Rule("reads", ("throttle seconds",), _reads),
)
