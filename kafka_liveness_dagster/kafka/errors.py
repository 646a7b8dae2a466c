"""Translate Kafka's errors into this package's, with the consequence and the fix.

Sends no request, and never retries.
"""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.fencing import RETRY_OUTCOME, FenceReason
from kafka_liveness_dagster.core.names import display

if TYPE_CHECKING:
    from kafka_liveness_dagster.kafka.settings import KafkaSettings

_NO_LONGER_A_MEMBER = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001 - librdkafka's own codes begin with an underscore
}
_TIMEOUT_CODES = {
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001 - it never left: those before it on the connection had no answer either
}
_UNREACHABLE = _TIMEOUT_CODES | {
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    KafkaError._RESOLVE,  # noqa: SLF001
}
_LOGIN = KafkaError._AUTHENTICATION  # noqa: SLF001
"""A request that its connection's login cut off. It may be transient: librdkafka logs in again after 9/10 of
a session. A broker refuses that in the first second of a session, and a token that is about to expire makes
sessions that short. The next read-only request shows whether the login is refused for good: its client gets
the reason."""
_LEADER_OR_COORDINATOR_MOVING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    # ListOffsets after a broker's restart: the client still has the leader epoch from before it
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,  # the broker does not have the new leader epoch yet
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,  # noqa: SLF001
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._NOENT,  # noqa: SLF001 - ListOffsets: no leader is known yet of a partition that was just added
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - the same, beside partitions that are known
}


class BrokerUnreachableError(KafkaLivenessError):
    """No broker responded in time, or none was ready yet; may be transient."""


class TopicNotFoundError(KafkaLivenessError):
    """A topic to consume does not exist."""


class KafkaRefusedError(KafkaLivenessError):
    """The broker or the client library refused a request for good."""


class AccessRefusedError(KafkaLivenessError):
    """The broker or schema registry did not accept the credentials, or this client not its certificate."""


class CommitRefusedError(KafkaLivenessError):
    """An offset commit was refused; the batch counts as not processed."""


class FencedError(CommitRefusedError):
    """This process may not commit any more.

    Attributes:
        reason: reason of the fence; if ``reason.may_rejoin``, the next poll joins as a new member.
    """

    def __init__(self, reason: FenceReason, detail: str = "", outcome: str = RETRY_OUTCOME) -> None:
        """Build the message from the reason and the outcome of the batch.

        The next owner resumes released partitions in order.
        """
        self.reason = reason
        remedy = f". {reason.remedy}" if reason.remedy else ""
        super().__init__(
            f"{reason.value}{f' ({detail})' if detail else ''}; nothing was committed, and "
            f"{RETRY_OUTCOME if reason.releases_partitions else outcome}{remedy}"
        )


class RebalanceTimeoutError(KafkaLivenessError):
    """A rebalance cannot wait for open batches any longer.

    A longer wait would remove this member from its group, with all its partitions.
    """


def is_no_longer_a_member(error: KafkaError) -> bool:
    """Return whether the broker has given this member's partitions to others."""
    return error.code() in _NO_LONGER_A_MEMBER


def fence_reason_of(error: KafkaError, was_replaced: FenceReason | None) -> FenceReason | None:
    """Return the reason why this error ends the membership; None if the membership continues.

    Args:
        error: error of a commit, or a fatal one of the client; both report that another member has the
            ``group.instance.id`` now.
        was_replaced: reason for that case; None for a member without a ``group.instance.id``.
    """
    if was_replaced and error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID):  # noqa: SLF001
        return was_replaced
    return FenceReason.PARTITIONS_LOST if is_no_longer_a_member(error) else None


def is_rebalance_in_progress(error: KafkaError) -> bool:
    """Return whether this process is still a member and must repeat the request.

    The member is between two generations (KIP-848: epochs), or its requests are delayed. The coordinator is
    unavailable (``_WAIT_COORD``), or a rebalance is in progress. The broker answers the requests of a
    connection in turn. So a commit waits behind the member's own JoinGroup until the slowest other member has
    joined (seen as ``_TIMED_OUT``). A removed member gets another error.
    """
    return error.code() in _TIMEOUT_CODES | {
        _LOGIN,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._WAIT_COORD,  # noqa: SLF001
    }


def is_transient(error: KafkaError) -> bool:
    """Return whether librdkafka continues by itself after this error."""
    return error.retriable() or error.code() in _UNREACHABLE | {
        _LOGIN,
        KafkaError._PARTITION_EOF,  # noqa: SLF001
        KafkaError._MAX_POLL_EXCEEDED,  # noqa: SLF001 - on_lost follows, and the watchdog rules
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }


def to_package_error(
    error: KafkaException | KafkaError, operation: str, bootstrap_servers: str
) -> KafkaLivenessError:
    """Return Kafka's error as one of this package's, with the operation and the fix."""
    cause: Any = error.args[0] if isinstance(error, KafkaException) else error
    if cause.code() in _UNREACHABLE:
        return BrokerUnreachableError(
            f"no Kafka broker answered at {bootstrap_servers} while {operation} ({cause.name()}: "
            f"{cause.str()}). Fix: check the address, the network and the listener's security settings. For "
            "the embedded broker run `kafka-liveness up`."
        )
    if cause.code() in _NO_LONGER_A_MEMBER:
        return CommitRefusedError(
            f"Kafka refused while {operation} ({cause.name()}): this consumer is no longer a member of "
            "the group, and its partitions have other owners. Nothing was committed; the next owner "
            "processes the batch again. Fix: none is needed, unless it repeats: then raise "
            "session_timeout_seconds."
        )
    if cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return TopicNotFoundError(
            f"a topic is gone while {operation} ({cause.name()}): it was deleted, or is being recreated. "
            "Nothing was committed. Fix: create the topic, or reset the group's offsets once you know why."
        )
    if cause.code() == _LOGIN:
        return BrokerUnreachableError(
            f"Kafka at {bootstrap_servers} could not answer while {operation} ({cause.name()}: "
            f"{cause.str()}): its connection was logging in again. Fix: none is needed, unless the broker "
            "now refuses the login."
        )
    if cause.code() in _LEADER_OR_COORDINATOR_MOVING or cause.retriable():
        return BrokerUnreachableError(
            f"Kafka at {bootstrap_servers} could not answer while {operation} ({cause.name()}: "
            f"{cause.str()}): a leader or a coordinator is moving. Fix: none is needed, unless a broker "
            "stays down."
        )
    remedy = _OTHER_ASSIGNOR if cause.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL else ""
    return KafkaRefusedError(f"Kafka refused while {operation} ({cause.name()}): {cause.str()}{remedy}")


class ErrorListener:
    """Keeps the last error that a client reports in addition to its responses.

    librdkafka reports a refused login only there, and retries indefinitely.

    Args:
        settings: settings of the client whose ``error_cb`` this is.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._last: KafkaError | None = None
        self._heard_at = -math.inf

    def __call__(self, error: KafkaError) -> None:
        """Caller: the client's ``poll``, for each error since the last one.

        Affects: the cause in the next error.
        """
        follows = error.code() == KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 - follows the one that says why
        if not follows and _SASL_STATE_ERROR not in error.str():
            self._last = error
            self._heard_at = time.monotonic()

    def to_package_error(self, error: KafkaException | KafkaError, operation: str) -> KafkaLivenessError:
        """Return the error as one of this package's; if a refusal caused a missing response, the refusal."""
        cause: Any = error.args[0] if isinstance(error, KafkaException) else error
        is_news = time.monotonic() - self._heard_at < RECENT_REFUSAL_SECONDS
        if cause.code() in _UNREACHABLE | {_LOGIN} and self._last is not None and is_news:
            why = _WHERE_AND_WHEN.sub("", self._last.str())
            if why.startswith(_WITHOUT_TOKEN):
                return self._token_error(why.removeprefix(_WITHOUT_TOKEN), operation)
            if self._last.code() == _LOGIN:
                check = _CHECK_CLAIMS if self._settings.security.uses_tokens else _CHECK_LOGIN
                return AccessRefusedError(f"{self._login_error()} while {operation}: {why}. {check}")
            if self._last.code() == KafkaError._SSL or "SSL routines" in why:  # noqa: SLF001
                remedy = _CHECK_CA if "certificate verify failed" in why else _CHECK_CERTIFICATE
                servers = self._settings.bootstrap_servers
                return AccessRefusedError(
                    f"no TLS with the broker at {servers} while {operation}: {why}. {remedy}"
                )
        if cause.code() in _UNREACHABLE and self._settings.security.uses_tokens:
            return BrokerUnreachableError(
                f"no Kafka broker answered at {self._settings.bootstrap_servers} while {operation} "
                f"({cause.name()}: {cause.str()}), or the token server at "
                f"{self._settings.security.sasl_oauthbearer_token_endpoint_url} gave no token. Fix: "
                "check both addresses, the network and the listener's security settings"
            )
        return to_package_error(error, operation, self._settings.bootstrap_servers)

    def _login_error(self) -> str:
        how = self._settings.security
        return (
            f"the broker at {self._settings.bootstrap_servers} refused "
            f"{'client' if how.uses_tokens else 'user'} {how.login!r} ({how.security_protocol}, "
            f"{how.sasl_mechanism})"
        )

    def _token_error(self, why: str, doing: str) -> KafkaLivenessError:
        """Return the token server's refusal, or its missing response; without a token no request is sent."""
        how = self._settings.security
        url = how.sasl_oauthbearer_token_endpoint_url
        if why.startswith("{"):  # OAuth 2's response to a request that it refuses
            return AccessRefusedError(
                f"the token server at {url} refused client {how.login!r} while {doing}: {display(why)}. "
                f"{_CHECK_CLIENT}"
            )
        if "certificate" in why or "trust anchors" in why:
            return AccessRefusedError(
                f"no TLS with the token server at {url} while {doing}: {why}. {_CHECK_HTTPS}"
            )
        return BrokerUnreachableError(
            f"the token server at {url} gave no token while {doing}: {why}. Without a token the client "
            "sends no request to a broker. Fix: check sasl_oauthbearer_token_endpoint_url, and that the "
            "token server is up"
        )


_OTHER_ASSIGNOR = (
    ". The group has members with another assignor, or members that are no consumers. This member joins "
    "with cooperative-sticky unless extra sets another. It has not joined and committed nothing. Fix: "
    "stop the others (kafka-consumer-groups --describe --members --verbose names them), or take a "
    "group_id that only this asset uses. Or use their assignor, for example "
    "extra={'partition.assignment.strategy': 'range'}"
)
_SASL_STATE_ERROR = "not valid in current SASL state"  # not a refusal: see _LOGIN
_WHERE_AND_WHEN = re.compile(r"^\S+://\S+: |\s*\(after [^)]*\)$")
_CHECK_LOGIN = (
    "Fix: check sasl_username and sasl_password, and that the broker has this user for this mechanism"
)
_CHECK_CLAIMS = (
    "The token server issued a token, and the broker refused it. Fix: check the audience, issuer, scope "
    "and subject that the broker requires (sasl_oauthbearer_scope, sasl_oauthbearer_extensions; "
    "sasl.oauthbearer.expected.* of the broker)"
)
_CHECK_CLIENT = (
    "Fix: check sasl_oauthbearer_client_id, sasl_oauthbearer_client_secret and sasl_oauthbearer_scope"
)
_CHECK_HTTPS = (
    "Fix: set https_ca_location to the PEM file of the authority that signed the token server's certificate"
)
_WITHOUT_TOKEN = "Failed to acquire SASL OAUTHBEARER token: "  # noqa: S105
RECENT_REFUSAL_SECONDS = 60.0
"""Age up to which a refusal explains an error. While a login is refused, librdkafka reports it at least every
30 s. A token server that was briefly unavailable does not explain an outage an hour later."""
_CHECK_CA = (
    "Fix: set ssl_ca_location to the PEM file of the authority that signed the broker's certificate. "
    "Connect by a host name that is in the certificate"
)
_CHECK_CERTIFICATE = (
    "Fix: check security_protocol and, when the listener requires a client's certificate, "
    "ssl_certificate_location and ssl_key_location"
)
