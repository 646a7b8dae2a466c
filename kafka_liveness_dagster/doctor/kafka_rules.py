"""Rules for a Kafka cluster: it keeps the group's commits and the records, and for long enough.

Facts have the names of Kafka's settings. Their values are texts, as the broker returns them. Queries nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_metadata import MAX_METADATA_BYTES
from kafka_liveness_dagster.core.timeouts import DEFAULT_SESSION_SECONDS
from kafka_liveness_dagster.doctor.rules import FAIL, OK, WARN, CheckResult, Rule, format_duration

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
_MAX_AHEAD_SECONDS = 5.0  # tolerance for a producer's clock


def _agreement(differing: Mapping[str, Mapping[int, str]]) -> CheckResult:
    # Rule 1: any broker may coordinate the group, or lead its topics
    if not differing:
        return OK("all brokers have the same settings")
    told = "; ".join(
        f"{name} is {', '.join(f'{value} on broker {broker}' for broker, value in sorted(values.items()))}"
        for name, values in sorted(differing.items())
    )
    return WARN(
        told,
        "set them alike on every broker. The value of the group's coordinator counts, and another broker "
        "becomes the coordinator when that one restarts. The other rules judge the broker with the lowest id",
    )


def _sessions(shortest: str, longest: str) -> CheckResult:
    # Rule 2: the brokers must allow the session timeouts of docs/liveness.md
    least = int(shortest)
    most = int(longest)
    ours = round(DEFAULT_SESSION_SECONDS * 1000)
    found = f"session timeouts of {least:,} to {most:,} ms"
    if least > ours:
        return WARN(
            found,
            f"lower group.min.session.timeout.ms to {ours:,} or less. If only the broker detects a dead "
            f"process, it holds its partitions for {format_duration(least / 1000)}, whatever "
            "session_timeout_seconds is",
        )
    if most < _JAVAS_SESSION_MS:
        return WARN(
            found,
            f"raise group.max.session.timeout.ms to {_JAVAS_SESSION_MS:,} or more. A run with a longer "
            "session_timeout_seconds is rejected before it joins, and processes with a throttled CPU need "
            "one",
        )
    return OK(found)


def _metadata(most: str) -> CheckResult:
    # Rule 3: the commits' metadata stores the pending ranges
    wanted = MAX_METADATA_BYTES + 1
    if int(most) < wanted:
        return FAIL(
            f"offset.metadata.max.bytes is {int(most):,}",
            f"set it to {wanted:,}, Kafka's default. Commits store the pending ranges of a partition. The "
            "broker rejects a commit with more of them (OFFSET_METADATA_TOO_LARGE), and then the live lane "
            "cannot commit",
        )
    return OK(f"{int(most):,} bytes of metadata per commit, about 200 pending ranges per partition")


def _offsets_retention(minutes: str) -> CheckResult:
    # Rule 4: a group that is down for longer loses its offsets and its pending ranges
    kept = int(minutes) * 60.0
    if kept < _WEEK:
        return WARN(
            f"offsets.retention.minutes is {int(minutes):,} ({format_duration(kept)})",
            "set it to 10080 (7 days, Kafka's default) or more. A group without members for longer loses its "
            "offsets and its pending ranges, and continues at auto_offset_reset",
        )
    return OK(f"commits of a group without members are kept for {format_duration(kept)}")


def _offsets_topic(told_copies: str | int, in_sync: str, brokers: int, is_embedded: bool) -> CheckResult:  # noqa: FBT001
    # Rule 5: commits are as durable as the topic that stores them
    copies = int(told_copies)
    found = f"__consumer_offsets: copies {copies}, min.insync.replicas {in_sync}, brokers {brokers}"
    owed = "The commits store the pending ranges"
    if int(in_sync) > copies:
        return FAIL(
            found,
            f"lower min.insync.replicas to {copies} or less. Until then the broker rejects every commit",
        )
    if is_embedded:
        return OK(f"{found}: the embedded broker is for one machine")
    if copies < _MIN_COPIES:
        how = "kafka-reassign-partitions; offsets.topic.replication.factor counts only for a new topic"
        return WARN(
            found,
            f"give it {_MIN_COPIES} copies ({how}). {owed}, and are lost with the disk of {copies} broker(s)",
        )
    if int(in_sync) < _MIN_IN_SYNC:
        return WARN(
            found,
            f"set min.insync.replicas={_MIN_IN_SYNC} on it. {owed}, and with {in_sync} an acknowledged "
            "commit may be on one broker alone",
        )
    return OK(found)


def _elections(unclean: str) -> CheckResult:
    # Rule 6: a log must not end below the committed offset
    if unclean == "true":
        return WARN(
            "unclean.leader.election.enable is true",
            (
                "set it to false. Otherwise a log may be cut below the committed offset, and the run then "
                "ends with TopicRecreatedError"
            ),
        )
    return OK("a log is not cut below the committed offset")


def _auto_creation(on: str) -> CheckResult:
    # Rule 7: a deleted topic stays deleted
    if on == "true":
        return WARN(
            "auto.create.topics.enable is true",
            "set it to false. Otherwise a running producer recreates a deleted topic, empty, and its group "
            "ends with TopicRecreatedError. A misspelled topic waits for records that never come",
        )
    return OK("auto.create.topics.enable is false")


def _group_sessions(session: str, heartbeat: str) -> CheckResult:
    # Rule 8: under KIP-848 both are settings of the group, and no resource can set them
    session_ms = int(session)
    heartbeat_ms = int(heartbeat)
    found = f"with group_protocol='consumer': session {session_ms:,} ms, heartbeat {heartbeat_ms:,} ms"
    if heartbeat_ms > session_ms // 3:
        return FAIL(
            found,
            "set consumer.heartbeat.interval.ms of the group to a third of consumer.session.timeout.ms at "
            "most. One lost heartbeat must not cost the membership, so a run refuses these values",
        )
    return OK(found)


def _retention(kept_ms: str, offsets_minutes: str) -> CheckResult:
    # Rule 9: crash lag needs time to be processed, and the commits must record it for as long
    kept = int(kept_ms)
    known = int(offsets_minutes) * 60.0
    if kept == _NEVER:
        return OK("retention.ms keeps records indefinitely")
    seconds = kept / 1000
    if seconds < _WEEKEND:
        return WARN(
            f"retention.ms is {kept:,} ({format_duration(seconds)})",
            f"set it to {round(_WEEKEND * 1000):,} (3 days) or more. Otherwise the broker deletes pending "
            "records, and the lag of a group that is down over a weekend",
        )
    if known < seconds:
        return WARN(
            f"records are kept for {format_duration(seconds)}, commits without members for "
            f"{format_duration(known)}",
            f"set offsets.retention.minutes to {round(seconds / 60):,} or more. A group that is down for "
            "longer loses its pending ranges while their records still exist",
        )
    return OK(
        f"records are kept for {format_duration(seconds)}, commits without members for "
        f"{format_duration(known)}"
    )


def _backlog(age_seconds: float, kept_ms: str) -> CheckResult:
    # Rule 10: waiting records are processed long before they expire
    kept = int(kept_ms) / 1000
    if not age_seconds:
        return OK("no record waits")
    if int(kept_ms) == _NEVER:
        return OK(
            f"the oldest waiting record is {format_duration(age_seconds)} old; retention.ms deletes none"
        )
    age = format_duration(age_seconds)
    found = f"the oldest waiting record is {age} old, {age_seconds / kept:.0%} of {format_duration(kept)}"
    advice = (
        "materialize the crash lag partitions, let more runs share the lag (max_live_runs), or raise "
        "retention.ms"
    )
    if age_seconds > _TOO_LATE_SHARE * kept:
        return FAIL(found, f"now: {advice}. The broker deletes the record at 100%")
    return WARN(found, advice) if age_seconds > _TIGHT_SHARE * kept else OK(found)


def _size(kept_bytes: str) -> CheckResult:
    # Rule 11: a limit of bytes is no limit of time
    if int(kept_bytes) == _NEVER:
        return OK("no limit of bytes")
    return WARN(
        f"retention.bytes is {int(kept_bytes):,} per partition",
        "set it to -1, or so large that it never applies. Otherwise crash lag expires by the rate of "
        "production, soonest at peak load",
    )


def _expiry(verdict: Verdict) -> CheckResult:
    # Rule 12: compares offsets with the log start, whichever setting deletes the records
    by = {"fine": OK, "warning": WARN, "error": FAIL}[verdict.severity.value]
    return (
        by(verdict.message) if by is OK else by(verdict.message, "`kafka-liveness status` shows each range")
    )


def _clock(ahead_seconds: float | None, kind: str) -> CheckResult:
    # Rule 13: a timestamp in the future delays retention and the completion of hours
    whose = "the broker's clock" if kind == "LogAppendTime" else "a producer's clock"
    if ahead_seconds is None:
        return OK("no record, so no timestamp")
    if ahead_seconds > _MAX_AHEAD_SECONDS:
        return WARN(
            f"the newest timestamp is {format_duration(ahead_seconds)} ahead of this machine's clock "
            f"({kind})",
            (
                f"synchronize {whose} and this machine's with NTP. Retention and windows of time depend on "
                "timestamps"
            ),
        )
    return OK(
        f"no timestamp is in the future ({kind}); only a produced record would show how far {whose} is behind"
    )


def _reads(throttle_seconds: float) -> CheckResult:
    # Rule 14: a quota slows down batches of any size
    if throttle_seconds:
        return WARN(
            f"a quota delayed a fetch just now by {throttle_seconds:,.2f} s",
            "raise consumer_byte_rate or request_percentage of this login (`kafka-configs --describe "
            "--entity-type users`). The quota decides how long a batch takes, and smaller batches read no "
            "faster",
        )
    return OK("no quota delayed a fetch just now; the client library cannot list quotas")


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
