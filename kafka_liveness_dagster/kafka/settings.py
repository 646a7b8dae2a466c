"""Which librdkafka settings make a member that keeps this package's promises?

Never lets an extra setting undo one of them: each refusal says why and where to say it instead.
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
"""How long an answer may take. A connection that the network has forgotten is found out by a request without
one: after librdkafka's own 60 s each of the sensor's clients would stand still for a minute, one after the
other."""
FETCH_MS = 1_000
"""How long a fetch waits at the broker for the first record, while there is none."""
_DERIVED_FROM_BUDGET = "the poll interval comes from the run budget: set max_batch_seconds"
_HAS_OWN_FIELD = "it has a field of its own on the resource or the consumer"
_REFUSED_SETTINGS = {
    "enable.auto.commit": "auto-commit acknowledges records that were never processed: call commit(batch)",
    "enable.auto.offset.store": "offsets are committed batch by batch: call commit(batch)",
    "max.poll.records": "librdkafka accepts and ignores it: pass max_poll_records, which is enforced here",
    "max.poll.interval.ms": _DERIVED_FROM_BUDGET,
    "session.timeout.ms": "set session_timeout_seconds, which is checked against the broker's limits",
    "heartbeat.interval.ms": "set heartbeat_interval_seconds, which is checked against the session timeout",
    "auto.offset.reset": "set auto_offset_reset, which decides only where nothing is committed",
    "isolation.level": (
        "both lanes and Spark read read_committed: two views of the log end would lose records"
    ),
    "group.id": _HAS_OWN_FIELD,
    "client.id": "it joins members to Dagster runs",
    "bootstrap.servers": _HAS_OWN_FIELD,
    "metadata.broker.list": _HAS_OWN_FIELD,
    "group.instance.id": "set group_instance_id on the consumer: it changes how a leave is noticed",
    "group.protocol": "set group_protocol on the resource: it decides who owns the session timeout",
    "internal.termination.signal": "librdkafka would send it to this process, and most signals end it",
    "test.mock.num.brokers": "the client would talk to brokers that it makes up",
}
_CODE = ("default.topic.config", "logger", "on_commit", "on_delivery")  # and every name that ends in _cb


@dataclass(frozen=True)
class KafkaSettings:
    """How to reach a cluster.

    Attributes:
        bootstrap_servers: ``host:port,host:port``.
        extra: further librdkafka settings.
        security: who is trusted; Spark is told the same.

    Raises:
        InvalidSettingError: an address that is none, or an extra setting that would break a promise of this
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
        """Settings from ``name=value`` lines, as commands take them; ``#`` begins a comment line."""
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
        """Settings of any client of this cluster."""
        return {
            "socket.timeout.ms": request_ms,
            "socket.connection.setup.timeout.ms": 10_000,  # Java's, for one accepted in silence
            # Between two attempts to find a coordinator a new client waits half of it: with librdkafka's 100
            # ms a first look, a join and a first commit take some 50 ms longer
            "reconnect.backoff.ms": 20,
            # Java's; librdkafka's 10 s are a whole session: a broker that is back would meet members gone
            "reconnect.backoff.max.ms": 1_000,
            # Else librdkafka forgets its coordinators with their broker: members are lost, groups never
            # described again
            "metadata.recovery.strategy": "none",
            **self.extra,
            **self.security.client_config(),
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": client_id,
            "log.connection.close": False,
        }

    def committer_config(self, group_id: str, client_id: str, request_ms: int = REQUEST_MS) -> dict[str, Any]:
        """Settings of a client that commits for a group without being its member."""
        return {
            **self.client_config(client_id, request_ms),
            "group.id": group_id,
            "enable.auto.commit": False,
        }

    def member_config(
        self, live_settings: LiveSettings, client_id: str, timeouts: Timeouts
    ) -> dict[str, Any]:
        """Settings of a group member that fetches no more than it must to hear of news.

        Spark reads the ranges.
        """
        name = live_settings.group_instance_id or live_settings.claimed_instance_id
        static = {} if name is None else {"group.instance.id": name}
        # A member with a claimed group.instance.id leaves by its watchdog, at the deadline or after a commit
        # of 5 s: librdkafka would let the session pass
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
            # What is fetched is a sign that there is something: one batch of records of one partition
            "fetch.message.max.bytes": 1,
            "fetch.wait.max.ms": min(FETCH_MS, timeouts.request_ms // 2),  # other requests wait behind it
            "queued.min.messages": 1,
            "topic.metadata.refresh.interval.ms": 30_000,  # new partitions are noticed within half a minute
        }

    def reader_config(self, group_id: str, client_id: str) -> dict[str, Any]:
        """Settings of a client that reads planned ranges by manual assignment.

        No member, and it commits nothing.
        """
        return {
            # Bytes of one partition at a time: what comes of the others waits for them
            "fetch.message.max.bytes": 131_072,
            "queued.max.messages.kbytes": 16_384,
            "fetch.queue.backoff.ms": 10,  # 1 s unless set, in which a fast reader has long emptied the queue
            # Ranges end below the log end; a wait at it holds up the others of its broker
            "fetch.wait.max.ms": 50,
            **self.committer_config(group_id, client_id),
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }

    def check(self, timeouts: Timeouts) -> None:
        """Refuse an extra setting with which these timeouts could not be kept.

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
        """What a member tells the group; under KIP-848 session, heartbeat and assignor are the broker's."""
        if timeouts.protocol == "consumer":
            if "partition.assignment.strategy" in self.extra:
                raise InvalidSettingError(
                    "extra setting partition.assignment.strategy belongs to the classic protocol: with "
                    "group_protocol='consumer' the broker assigns (group.remote.assignor chooses how)"
                )
            return {"group.protocol": "consumer"}
        return {
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": timeouts.session_timeout_ms,
            "heartbeat.interval.ms": timeouts.heartbeat_ms,
        }

    def spark_options(self) -> dict[str, str]:
        """Options of Spark's Kafka source for the same cluster."""
        return {"kafka.bootstrap.servers": self.bootstrap_servers, **self.security.spark_options()}


@dataclass(frozen=True)
class LiveSettings:
    """What one live lane consumes and how; the resource's ``consumer`` has checked it.

    Attributes:
        answers_rebalances_while_busy: rebalances are answered in the middle of a batch
            (``liveness="progress"``); otherwise they wait for the next poll, as KIP-62 has it.
        group_instance_id: of a static member (KIP-345), None for a dynamic one.
        claimed_instance_id: the name of a member that leaves like a dynamic one, and whose successor need not
            wait for its session if it dies (``kafka.live.session``); None without.
        is_greedy: fill a batch from one partition before the next, as KIP-41 does at first; fair shares
            otherwise.
        ledger: which offsets the target has; None where both commit logs decide alone.
        recommit_seconds: how often the catch-up commit log is committed again, so that it does not expire
            under a live run.
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
    """Report librdkafka settings that would break a promise of this package, and their replacement."""
    for name, value in extra.items():
        if name == "enable.auto.commit" and value.lower() == "false":
            continue
        if is_security_setting(name):  # without its value, which may be a secret
            yield f"extra setting {name} is refused: {replacement_for(name)}"
        elif name in _REFUSED_SETTINGS:
            yield f"extra setting {name}={display(value)} is refused: {_REFUSED_SETTINGS[name]}"
        elif name.endswith("_cb") or name in _CODE:
            yield f"extra setting {name} is refused: it is a function, and all of these are texts"
        elif not (VALUE.matches(name) and VALUE.matches(value)):
            yield f"extra setting {display(name)} is refused: wanted {VALUE.description}"
