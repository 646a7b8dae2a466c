"""Build the librdkafka settings of each kind of client.

Never lets an extra setting break a guarantee of this package: each refusal names the reason and the
replacement.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import SERVERS, VALUE, display
from kafka_liveness_dagster.core.resume import ResumePolicy
from kafka_liveness_dagster.core.timeouts import MAX_BUDGET_SECONDS, check_request_timeout
from kafka_liveness_dagster.kafka.security import (
    Security,
    is_security_setting,
    replacement_for,
    take_from_properties,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kafka_liveness_dagster.core.sink_ledger import LaneLedger
    from kafka_liveness_dagster.core.timeouts import Timeouts

DEFAULT_MAX_POLL_RECORDS = 500  # KIP-62
REQUEST_MS = 5_000
"""Timeout of a request. Only a request without a response reveals a connection that the network dropped. With
librdkafka's default of 60 s each of the sensor's clients would block for a minute, one after the other."""
FETCH_MS = 1_000
"""Longest time that a fetch waits at the broker for the first record."""
_DERIVED_FROM_BUDGET = "the run budget sets it: set max_batch_seconds"
_HAS_OWN_FIELD = "set the field of the resource or of the consumer instead"
_REFUSED_SETTINGS = {
    "enable.auto.commit": "auto-commit acknowledges records that were never processed: call commit(batch)",
    "enable.auto.offset.store": "offsets are committed batch by batch: call commit(batch)",
    "max.poll.records": "librdkafka accepts and ignores it: pass max_poll_records, which is enforced here",
    "max.poll.interval.ms": _DERIVED_FROM_BUDGET,
    "session.timeout.ms": "set session_timeout_seconds, which is checked against the broker's limits",
    "heartbeat.interval.ms": "set heartbeat_interval_seconds, which is checked against the session timeout",
    "auto.offset.reset": "set auto_offset_reset, which decides only where nothing is committed",
    "isolation.level": (
        "leave it out: both lanes and Spark read read_committed, and two views of the log end would "
        "lose records"
    ),
    "group.id": _HAS_OWN_FIELD,
    "client.id": "leave it out: it links members to Dagster runs",
    "bootstrap.servers": _HAS_OWN_FIELD,
    "metadata.broker.list": _HAS_OWN_FIELD,
    "group.instance.id": "set group_instance_id on the consumer: it changes how a leave is noticed",
    "group.protocol": "set group_protocol on the resource: it decides who owns the session timeout",
    "internal.termination.signal": (
        "leave it out: librdkafka would send it to this process, and most signals end it"
    ),
    "test.mock.num.brokers": "leave it out: the client would talk to mock brokers",
}
_CODE = ("default.topic.config", "logger", "on_commit", "on_delivery")  # and every name that ends in _cb


@dataclass(frozen=True)
class KafkaSettings:
    """The address and the settings of a cluster.

    Attributes:
        bootstrap_servers: ``host:port,host:port``.
        extra: further librdkafka settings.
        security: login and trust settings; Spark gets the same.

    Raises:
        InvalidSettingError: an address is invalid, or an extra setting would break a guarantee of this
            package.
    """

    bootstrap_servers: str
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)
    security: Security = field(default_factory=Security)

    def __post_init__(self) -> None:
        SERVERS.check(self.bootstrap_servers, "bootstrap_servers")
        if wrong := list(refused_settings(self.extra)):
            raise InvalidSettingError("\n".join(wrong))

    @classmethod
    def from_properties(cls, bootstrap_servers: str, lines: Iterable[str]) -> KafkaSettings:
        """Return settings from ``name=value`` lines, as commands take them; ``#`` begins a comment line."""
        told = (
            line.strip().partition("=")
            for line in lines
            if line.strip() and not line.lstrip().startswith("#")
        )
        extra = {name.strip(): value.strip() for name, _, value in told}
        security = take_from_properties(extra)
        return cls(bootstrap_servers, extra, security)

    def __hash__(self) -> int:
        return hash((self.bootstrap_servers, self.security))

    def client_config(self, client_id: str, request_ms: int = REQUEST_MS) -> dict[str, Any]:
        """Return the settings of any client of this cluster."""
        return {
            "socket.timeout.ms": request_ms,
            # Java's; limits a connection that is accepted without a response
            "socket.connection.setup.timeout.ms": 10_000,
            # Between two attempts to find a coordinator a new client waits half of it. With librdkafka's 100
            # ms a first request, a join and a first commit take some 50 ms longer
            "reconnect.backoff.ms": 20,
            # Java's. librdkafka's 10 s are a whole session: when a broker is back, its members are removed
            "reconnect.backoff.max.ms": 1_000,
            # Else librdkafka drops its coordinators with their broker: members are lost, and groups can never
            # be described again
            "metadata.recovery.strategy": "none",
            **self.extra,
            **self.security.client_config(),
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": client_id,
            "log.connection.close": False,
        }

    def committer_config(self, group_id: str, client_id: str, request_ms: int = REQUEST_MS) -> dict[str, Any]:
        """Return the settings of a client that commits for a group without being its member."""
        return {
            **self.client_config(client_id, request_ms),
            "group.id": group_id,
            "enable.auto.commit": False,
        }

    def member_config(
        self, live_settings: LiveSettings, client_id: str, timeouts: Timeouts
    ) -> dict[str, Any]:
        """Return the settings of a group member that fetches only enough to notice new records.

        Spark reads the ranges.
        """
        name = live_settings.group_instance_id or live_settings.claimed_instance_id
        static = {} if name is None else {"group.instance.id": name}
        # The watchdog makes a member with a claimed group.instance.id leave, at the deadline or after a
        # commit of 5 s. Without the slack librdkafka stops first, and others wait for its session timeout
        slack_ms = 0 if live_settings.claimed_instance_id is None else 10_000
        return {
            **self._protocol_config(timeouts),
            **self.committer_config(live_settings.group_id, client_id, timeouts.request_ms),
            **static,
            "max.poll.interval.ms": min(
                timeouts.rebalance_timeout_ms + slack_ms, round(MAX_BUDGET_SECONDS * 1000)
            ),
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            # A fetched record only signals new data: one batch of records of one partition is enough
            "fetch.message.max.bytes": 1,
            "fetch.wait.max.ms": min(FETCH_MS, timeouts.request_ms // 2),  # other requests wait behind it
            "queued.min.messages": 1,
            "topic.metadata.refresh.interval.ms": 30_000,  # new partitions are noticed within half a minute
        }

    def reader_config(self, group_id: str, client_id: str) -> dict[str, Any]:
        """Return the settings of a client that reads planned ranges by manual assignment.

        The client is no member, and commits nothing.
        """
        return {
            # Bytes of one partition in a response: data of the other partitions waits behind them
            "fetch.message.max.bytes": 131_072,
            "queued.max.messages.kbytes": 16_384,
            "fetch.queue.backoff.ms": 10,  # in the default of 1 s a fast reader empties the queue and waits
            # Ranges end below the log end; a wait at the log end delays other partitions of the same broker
            "fetch.wait.max.ms": 50,
            **self.committer_config(group_id, client_id),
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }

    def check(self, timeouts: Timeouts) -> None:
        """Refuse an extra setting that contradicts these timeouts.

        Raises:
            InvalidSettingError: ``socket.timeout.ms`` is no number, or a request may outlast the session.
        """
        given = self.extra.get("socket.timeout.ms")
        if given is not None and not str(given).isdecimal():
            raise InvalidSettingError(
                f"extra setting socket.timeout.ms={given}: wanted a number of milliseconds"
            )
        check_request_timeout(None if given is None else int(given), timeouts)

    def _protocol_config(self, timeouts: Timeouts) -> dict[str, Any]:
        """Return the protocol settings; under KIP-848 the broker sets session, heartbeat and assignor."""
        if timeouts.protocol == "consumer":
            if "partition.assignment.strategy" in self.extra:
                raise InvalidSettingError(
                    "extra setting partition.assignment.strategy is refused: with "
                    "group_protocol='consumer' the broker assigns the partitions. Fix: leave it out, or "
                    "set group.remote.assignor"
                )
            return {"group.protocol": "consumer"}
        return {
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": timeouts.session_timeout_ms,
            "heartbeat.interval.ms": timeouts.heartbeat_ms,
        }

    def spark_options(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source for the same cluster."""
        return {"kafka.bootstrap.servers": self.bootstrap_servers, **self.security.spark_options()}


@dataclass(frozen=True)
class LiveSettings:
    """The settings of one live lane; the resource's ``consumer`` has checked them.

    Attributes:
        answers_rebalances_while_busy: whether rebalances are answered during a batch
            (``liveness="progress"``); otherwise they wait for the next poll, as in KIP-62.
        group_instance_id: id of a static member (KIP-345); None for a dynamic member.
        claimed_instance_id: id of a member that leaves like a dynamic one. If it dies, its successor need not
            wait for its session timeout (``kafka.live.session``). None without one.
        is_greedy: whether a batch takes all from one partition before the next, as KIP-41 does at first;
            otherwise partitions have fair shares.
        ledger: ledger of the target's offsets; None if both commit logs decide alone.
        recommit_seconds: interval at which the catch-up commit log is committed again, so that it does not
            expire during a live run.
    """

    topics: tuple[str, ...]
    group_id: str
    max_poll_records: int = DEFAULT_MAX_POLL_RECORDS
    _: KW_ONLY
    policy: ResumePolicy = field(default_factory=ResumePolicy)
    answers_rebalances_while_busy: bool = False
    group_instance_id: str | None = None
    claimed_instance_id: str | None = None
    is_greedy: bool = False
    ledger: LaneLedger | None = None
    recommit_seconds: float = 3_600.0


def refused_settings(extra: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each librdkafka setting that would break a guarantee, with its replacement."""
    for name, value in extra.items():
        if name == "enable.auto.commit" and value.lower() == "false":
            continue
        if is_security_setting(name):  # without its value, which may be a secret
            yield f"extra setting {name} is refused: {replacement_for(name)}"
        elif name in _REFUSED_SETTINGS:
            yield f"extra setting {name}={display(value)} is refused: {_REFUSED_SETTINGS[name]}"
        elif name.endswith("_cb") or name in _CODE:
            yield f"extra setting {name} is refused: it takes a function, and all values of extra are texts"
        elif not (VALUE.matches(name) and VALUE.matches(value)):
            yield f"extra setting {display(name)} is refused: wanted {VALUE.description}"
