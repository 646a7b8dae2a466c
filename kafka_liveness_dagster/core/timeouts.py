"""Turn a run budget into the timeouts of a group member (KIP-62), within the limits of the broker.

Refuses an invalid budget. Never reads a clock, a tag or a broker.

>>> from kafka_liveness_dagster.core.timeouts import BrokerLimits
>>> budget = resolve_budget(argument=None, op_tag=120, asset_metadata=None, run_remaining=None, default=300)
>>> limits = BrokerLimits(6_000, 1_800_000)
>>> timeouts = derive_timeouts(budget, session_seconds=None, heartbeat_seconds=None, limits=limits)
>>> timeouts.session_timeout_ms, timeouts.heartbeat_ms, timeouts.process_timeout_ms, str(timeouts.budget)
(10000, 3000, 120000, '120 s (op tag kafka_liveness/max_batch_seconds)')
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from kafka_liveness_dagster.core.errors import InvalidSettingError, KafkaLivenessError


@dataclass(frozen=True)
class BrokerLimits:
    """The broker's limits for groups: ``group.min.session.timeout.ms``, and its ``max``.

    Attributes:
        offsets_retention_seconds: time for which the offsets of a group without members are kept.
    """

    min_session_ms: int
    max_session_ms: int
    offsets_retention_seconds: float = 7 * 86_400.0

    @property
    def recommit_seconds(self) -> float:
        """Interval in seconds at which offsets that must not expire are committed again.

        An hour, or a quarter of the retention.
        """
        return min(3_600.0, self.offsets_retention_seconds / 4)


@dataclass(frozen=True)
class ConsumerGroupConfig:
    """The broker's group config.

    ``consumer.session.timeout.ms``, ``consumer.heartbeat.interval.ms``.
    """

    session_ms: int
    heartbeat_ms: int


DEFAULT_SESSION_SECONDS = 10.0  # KIP-62; Java raised its own default to 45 s in KIP-735
DEFAULT_BUDGET_SECONDS = 300.0  # KIP-62: max.poll.interval.ms = 5 min
MAX_BUDGET_SECONDS = 86_400.0  # librdkafka's ceiling for max.poll.interval.ms
_DEFAULT_HEARTBEAT_MS = 3_000


class MaxRuntimeReachedError(KafkaLivenessError):
    """The run's ``dagster/max_runtime`` is used up, so no further batch may start."""


@dataclass(frozen=True)
class RunBudget:
    """The longest time of one batch in seconds, and the setting it comes from."""

    seconds: float
    source: str
    is_capped: bool = False  # limited by the remaining time of the run, not by the user's setting

    def __str__(self) -> str:
        return f"{self.seconds:g} s ({self.source})"


@dataclass(frozen=True)
class Timeouts:
    """The timeouts of a group member, in milliseconds.

    The watchdog enforces ``process_timeout_ms``; the client sends ``rebalance_timeout_ms``. Under
    ``protocol="consumer"`` (KIP-848) the broker sets session and heartbeat: they are known here, never sent.
    """

    session_timeout_ms: int
    heartbeat_ms: int
    process_timeout_ms: int
    _: KW_ONLY
    budget: RunBudget
    protocol: Literal["classic", "consumer"] = "classic"
    session_source: str = "by default"  # in words

    @property
    def request_ms(self) -> int:
        """The member's ``socket.timeout.ms`` unless the user sets one: half the session timeout.

        ``check_request_timeout`` has the reason.
        """
        return min(self.session_timeout_ms // 2, 60_000)  # librdkafka's own default

    @property
    def rebalance_timeout_ms(self) -> int:
        """The client's ``max.poll.interval.ms``, which the broker takes as rebalance timeout (KIP-62).

        It exceeds the process timeout by a heartbeat and the time of a commit. The broker counts from the
        start of a rebalance, which a member notices up to a heartbeat later. A batch planned in between may
        take its whole process timeout. Without the extra time the broker would then remove its member.
        """
        longest = round(MAX_BUDGET_SECONDS * 1000)
        return min(self.process_timeout_ms + self.heartbeat_ms + self._commit_ms, longest)

    @property
    def handover_ms(self) -> int:
        """Time after the last poll for which a rebalance may wait for open batches before they are given up.

        It ends a heartbeat and the time of a commit before the process timeout.
        """
        return self.process_timeout_ms - self.heartbeat_ms - self._commit_ms

    @property
    def _commit_ms(self) -> int:
        """Time for the last commit: a tenth of the process timeout, 2 s at most."""
        return min(self.process_timeout_ms // 10, 2_000)

    @property
    def _is_raised(self) -> bool:
        return self.process_timeout_ms > round(self.budget.seconds * 1000)

    @property
    def warning(self) -> str:
        """The reason why a batch may take longer than its budget, for the log.

        Empty while the budget is the process timeout. It is also empty for a budget that the end of the run
        has cut, because the user did not set it.
        """
        if not self._is_raised or self.budget.is_capped:
            return ""
        lower = "session_timeout_seconds, which the broker's group.min.session.timeout.ms bounds"
        if self.protocol == "consumer":
            lower = (
                "consumer.session.timeout.ms of the group on the broker (kafka-configs --entity-type groups)"
            )
        return (
            f"Process timeout was raised from {self.budget} to the session timeout, "
            f"{self.session_timeout_ms / 1000:g} s: a hung batch ends no sooner than a dead process is "
            f"noticed (KIP-62). Fix: raise max_batch_seconds, or lower {lower}"
        )

    def __str__(self) -> str:
        budget = f"from {self.budget.source}"
        if self._is_raised:
            budget = f"raised to the session timeout from {self.budget}"
        return (
            f"process timeout {self.process_timeout_ms / 1000:g} s, {budget}; session timeout "
            f"{self.session_timeout_ms / 1000:g} s and heartbeat every {self.heartbeat_ms / 1000:g} s, "
            f"{self.session_source}"
        )


def resolve_budget(
    *,
    argument: float | None,
    op_tag: float | None,
    asset_metadata: float | None,
    run_remaining: float | None,
    default: float | None,
) -> RunBudget:
    """Return the budget of one batch: the first one set, at most the remaining time of the run.

    Args:
        argument: ``max_batch_seconds`` given in code.
        op_tag: op tag ``kafka_liveness/max_batch_seconds``.
        asset_metadata: asset metadata of the same name.
        run_remaining: seconds left of ``dagster/max_runtime``.
        default: the resource's default.

    Raises:
        InvalidSettingError: there is no budget, or it is not in (0 s, 24 h].
        MaxRuntimeReachedError: the run has no time left.
    """
    candidates = [
        (argument, "argument max_batch_seconds"),
        (op_tag, "op tag kafka_liveness/max_batch_seconds"),
        (asset_metadata, "max_batch_seconds of the asset"),
        (run_remaining, "the rest of dagster/max_runtime"),
        (default, "default_max_batch_seconds of the Kafka resource"),
    ]
    chosen = next((RunBudget(s, source) for s, source in candidates if s is not None), None)
    if chosen is None:
        raise InvalidSettingError(
            "no run budget: a batch without a deadline could hold its partitions indefinitely. "
            "Fix: set max_batch_seconds, or dagster/max_runtime on the run"
        )
    if run_remaining is not None and run_remaining <= 0:
        raise MaxRuntimeReachedError(
            f"the run is {-run_remaining:g} s past its dagster/max_runtime. No further batch was "
            "started. Fix: none is needed; the next run continues"
        )
    _check_budget(chosen)
    if run_remaining is not None and run_remaining < chosen.seconds:
        return RunBudget(
            run_remaining, f"{chosen.source}, capped by the rest of dagster/max_runtime", is_capped=True
        )
    return chosen


def _check_budget(budget: RunBudget) -> None:
    if not (math.isfinite(budget.seconds) and 0 < budget.seconds <= MAX_BUDGET_SECONDS):
        raise InvalidSettingError(
            f"run budget {budget.seconds:,.10g} s ({budget.source}) must be above 0 and at most "
            f"{MAX_BUDGET_SECONDS:,g} s (24 h). A longer poll interval, as once in Kafka Streams with "
            "Integer.MAX_VALUE (2,147,483,647 ms, 24.9 days), lets a hung batch hold its partitions "
            "indefinitely. Fix: set max_batch_seconds to the seconds that the longest healthy batch "
            "takes"
        )


def derive_timeouts(
    budget: RunBudget,
    *,
    session_seconds: float | None,
    heartbeat_seconds: float | None,
    limits: BrokerLimits,
    group: ConsumerGroupConfig | None = None,
) -> Timeouts:
    """Return session, heartbeat and process timeout for this budget (KIP-62, Public Interfaces).

    If no session timeout is set, a short budget lowers it, but never below the broker's minimum. With
    ``group`` (KIP-848; None for the classic protocol) the broker sets session and heartbeat, not the user.
    The process timeout is the larger of budget and session timeout, as KIP-62 requires. So a shorter budget
    is raised, which ``Timeouts.warning`` reports.

    Raises:
        InvalidSettingError: settings contradict each other or the broker.
    """
    if group is None:
        session_ms = _session_ms(budget, session_seconds, limits)
        heartbeat_ms = _heartbeat_ms(session_ms, heartbeat_seconds)
    else:
        session_ms = group.session_ms
        heartbeat_ms = group.heartbeat_ms
        _check_group(group, session_seconds, heartbeat_seconds)
    if session_ms > MAX_BUDGET_SECONDS * 1000:
        raise InvalidSettingError(
            f"session timeout {session_ms:,} ms is above 24 h, {MAX_BUDGET_SECONDS * 1000:,.0f} ms, the "
            "longest poll interval. Fix: lower session_timeout_seconds, or with KIP-848 "
            "consumer.session.timeout.ms of the group on the broker"
        )
    return Timeouts(
        session_timeout_ms=session_ms,
        heartbeat_ms=heartbeat_ms,
        process_timeout_ms=max(session_ms, round(budget.seconds * 1000)),
        budget=budget,
        protocol="classic" if group is None else "consumer",
        session_source=_session_source(session_seconds, heartbeat_seconds, group),
    )


def _session_source(
    session_seconds: float | None, heartbeat_seconds: float | None, group: ConsumerGroupConfig | None
) -> str:
    """Return in words where session timeout and heartbeat come from."""
    if group is not None:
        return "from the group's config on the broker"
    set_by_user = {
        "session_timeout_seconds": session_seconds,
        "heartbeat_interval_seconds": heartbeat_seconds,
    }
    names = [name for name, value in set_by_user.items() if value is not None]
    return f"from {' and '.join(names)} of the Kafka resource" if names else "by default"


def check_request_timeout(request_ms: int | None, timeouts: Timeouts) -> None:
    """Refuse a ``socket.timeout.ms`` with which one silently dead connection costs the membership.

    None is accepted. JoinGroup is not affected: librdkafka waits ``max.poll.interval.ms`` + 3 s for it
    (KIP-266). But no second heartbeat is sent while the first, or FindCoordinator after it, waits on a dead
    connection (KIP-735, Motivation). Of 16 members with a 10 s session, librdkafka's default of 60 s
    lost all, and 5 s lost none. Under KIP-848 it lost 5 of 8.

    Raises:
        InvalidSettingError: heartbeat interval and request timeout do not fit into the session.
    """
    longest_ms = timeouts.session_timeout_ms - timeouts.heartbeat_ms
    if request_ms is not None and request_ms >= longest_ms:
        raise InvalidSettingError(
            f"socket.timeout.ms {request_ms:,} and heartbeat interval {timeouts.heartbeat_ms:,} ms do "
            f"not fit into the session timeout {timeouts.session_timeout_ms:,} ms: one silently dead "
            f"connection would cost the membership. Fix: set socket.timeout.ms below {longest_ms:,}, "
            f"leave it unset ({timeouts.request_ms:,} is sent then), or raise the session timeout"
        )


def _check_group(
    group: ConsumerGroupConfig, session_seconds: float | None, heartbeat_seconds: float | None
) -> None:
    say = "kafka-configs --alter --entity-type groups --entity-name <group id> --add-config consumer."
    if session_seconds is not None or heartbeat_seconds is not None:
        raise InvalidSettingError(
            f"session_timeout_seconds={session_seconds} and "
            f"heartbeat_interval_seconds={heartbeat_seconds} cannot be sent with "
            f"group.protocol=consumer (KIP-848). The broker's group config sets {group.session_ms:,} "
            f"and {group.heartbeat_ms:,} ms. Fix: leave them unset, or change them on the broker: "
            f"{say}session.timeout.ms=<ms>"
        )
    _check_heartbeat(
        group.heartbeat_ms, group.session_ms, f"set it on the broker: {say}heartbeat.interval.ms=<ms>"
    )


def _session_ms(budget: RunBudget, session_seconds: float | None, limits: BrokerLimits) -> int:
    if session_seconds is None:
        wanted = round(min(DEFAULT_SESSION_SECONDS, budget.seconds) * 1000)
        session_ms = min(max(wanted, limits.min_session_ms), limits.max_session_ms)
    else:
        session_ms = _milliseconds("session timeout", session_seconds)
    if not limits.min_session_ms <= session_ms <= limits.max_session_ms:
        raise InvalidSettingError(
            f"session timeout {session_ms:,} ms is outside the broker's limits, "
            f"{limits.min_session_ms:,} to {limits.max_session_ms:,} ms "
            "(group.min/max.session.timeout.ms). Fix: change session_timeout_seconds, or the broker's "
            "limits"
        )
    return session_ms


def _heartbeat_ms(session_ms: int, heartbeat_seconds: float | None) -> int:
    if heartbeat_seconds is None:
        heartbeat_ms = min(_DEFAULT_HEARTBEAT_MS, session_ms // 3)
    else:
        heartbeat_ms = _milliseconds("heartbeat interval", heartbeat_seconds)
    _check_heartbeat(heartbeat_ms, session_ms, "set heartbeat_interval_seconds or session_timeout_seconds")
    return heartbeat_ms


def _check_heartbeat(heartbeat_ms: int, session_ms: int, remedy: str) -> None:
    ceiling = session_ms // 3
    if not 0 < heartbeat_ms <= ceiling:
        raise InvalidSettingError(
            f"heartbeat interval {heartbeat_ms:,} ms must be above 0 and at most a third of the session "
            f"timeout, {ceiling:,} of {session_ms:,} ms: one lost heartbeat must not cost the "
            f"membership. Fix: {remedy}"
        )


def _milliseconds(name: str, seconds: float) -> int:
    if not math.isfinite(seconds):
        raise InvalidSettingError(f"{name} is {seconds} s: wanted a number of seconds")
    return round(seconds * 1000)
