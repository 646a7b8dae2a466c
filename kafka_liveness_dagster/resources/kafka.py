"""Kafka resource for assets, sensors and scripts, with its login; embedded unless an address is given.

Never shows a secret: not in ``repr``, not in an error, and not on the resource's page in Dagster's UI.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

import dagster as dg
from dagster_shared.libraries import DagsterLibraryRegistry
from pydantic import Field

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.sink_ledger import LaneLedger
from kafka_liveness_dagster.core.timeouts import DEFAULT_BUDGET_SECONDS, derive_timeouts
from kafka_liveness_dagster.kafka.settings import DEFAULT_MAX_POLL_RECORDS, KafkaSettings, LiveSettings
from kafka_liveness_dagster.runs.run_context import run_context_of
from kafka_liveness_dagster.runs.tags import Context, budget_of
from kafka_liveness_dagster.settings.asset import KafkaResourceSettings
from kafka_liveness_dagster.settings.consumers import CatchUpSettings, ConsumerSettings
from kafka_liveness_dagster.settings.groups import Batching, CrashLag, Membership, Offsets
from kafka_liveness_dagster.settings.types import EMBEDDED
from kafka_liveness_dagster.settings.validation import CheckedResource, resolve_env_vars, validated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.core.sink_ledger import SinkLedger
    from kafka_liveness_dagster.core.timeouts import BrokerLimits, RunBudget, Timeouts
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.catch_up.consumer import CatchUpConsumer
    from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer
    from kafka_liveness_dagster.kafka.security import Security


_PUBLIC_PARAMETERS = {"grpc_max_message_size", "session_id", "use_ssl", "user_agent", "user_id"}
"""Parameters of a Spark Connect address without secrets.

All others count as secrets: the token, and headers that a proxy may use as a login.
"""


class ResourceWithSecrets(CheckedResource):
    """A resource with fields that Dagster's UI must not show.

    Attributes:
        secrets: names of the secret fields.
        addresses: names of fields that are secret only if they contain a login or a token.
    """

    secrets: ClassVar[tuple[str, ...]] = ()
    addresses: ClassVar[tuple[str, ...]] = ()

    def get_resource_definition(self) -> Any:
        """Return Dagster's definition of this resource, or refuse a secret in plain text.

        Dagster calls it when it loads a code location; its UI would show such a secret.

        Raises:
            InvalidSettingError: a secret, or an address with a secret, is not given as ``dg.EnvVar``.
        """
        for name in self.secrets:
            value = getattr(self, name)
            if value is not None and not isinstance(value, dg.EnvVar):
                raise InvalidSettingError(
                    f"{name} is given as its value, which Dagster's UI would show. Fix: put it into an "
                    "environment variable "
                    f'and write {name}=dg.EnvVar("ITS_NAME")'
                )
        for name in self.addresses:
            value = getattr(self, name)
            if isinstance(value, str) and not isinstance(value, dg.EnvVar) and _contains_secret(value):
                raise InvalidSettingError(
                    f"{name} holds a token or a login as its value, which Dagster's UI would show. Fix: put "
                    "the whole "
                    f'address into an environment variable and write {name}=dg.EnvVar("ITS_NAME")'
                )
        return super().get_resource_definition()


def _contains_secret(address: str) -> bool:
    """Return whether an address has a user name and password, or a parameter that may be a token."""
    url = urlsplit(address)
    parameters = (one.partition("=") for one in url.path.split(";")[1:])
    return "@" in url.netloc or any(value and name not in _PUBLIC_PARAMETERS for name, _, value in parameters)


class SecuredKafkaResource(ResourceWithSecrets):
    """The security settings of a Kafka cluster, for both librdkafka and Spark's Kafka source."""

    secrets: ClassVar[tuple[str, ...]] = (
        "sasl_password",
        "sasl_oauthbearer_client_secret",
        "ssl_key_password",
    )

    # str and not Literal: pydantic rejects dg.EnvVar for a Literal
    security_protocol: str = Field(
        default="PLAINTEXT", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."
    )
    sasl_mechanism: str | None = Field(
        default=None, description="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."
    )
    sasl_username: str | None = Field(default=None, description="The user, or the key of a managed cluster.")
    sasl_password: str | None = Field(default=None, repr=False, description="A secret: only as dg.EnvVar.")
    ssl_ca_location: str | None = Field(
        default=None,
        description=(
            "PEM file of the authority that signed the brokers' certificates; the system's and Java's own "
            "authorities unless set. The run sends the content of this and the next two files to Spark."
        ),
    )
    ssl_certificate_location: str | None = Field(
        default=None, description="PEM file of the client's certificate (mTLS)."
    )
    ssl_key_location: str | None = Field(default=None, description="PEM file of the client's key, in PKCS#8.")
    ssl_key_password: str | None = Field(
        default=None, repr=False, description="Password of an encrypted key. A secret: only as dg.EnvVar."
    )
    ssl_endpoint_identification_algorithm: str = Field(
        default="https", description="`none` accepts a certificate made for another host name."
    )
    sasl_oauthbearer_client_id: str | None = Field(
        default=None,
        description="With OAUTHBEARER: the client ID at the token server (OIDC client credentials).",
    )
    sasl_oauthbearer_client_secret: str | None = Field(
        default=None, repr=False, description="With OAUTHBEARER. A secret: only as dg.EnvVar."
    )
    sasl_oauthbearer_token_endpoint_url: str | None = Field(
        default=None,
        description=(
            "With OAUTHBEARER: the token endpoint, an https address. Runs, sensors, and Spark's driver and "
            "executors request tokens from it."
        ),
    )
    sasl_oauthbearer_scope: str | None = Field(
        default=None, description="With OAUTHBEARER: the scope to request."
    )
    sasl_oauthbearer_extensions: str | None = Field(
        default=None,
        description="With OAUTHBEARER: `name=value,name=value` for the broker, such as Confluent Cloud's "
        "`logicalCluster=lkc-…,identityPoolId=pool-…`.",
    )
    https_ca_location: str | None = Field(
        default=None,
        description=(
            "PEM file of the authority that signed the token server's certificate; the system's and Java's "
            "own authorities unless set."
        ),
    )

    def security(self) -> Security:
        """Return the checked settings; the check reads the PEM files.

        Raises:
            InvalidSettingError: settings contradict each other, or a file lacks its certificate or key.
        """
        from kafka_liveness_dagster.kafka.security import SETTING_DEFAULTS, Security  # noqa: PLC0415 - only where it is used

        return Security(**{name: resolve_env_vars(getattr(self, name)) for name in SETTING_DEFAULTS})


_log = logging.getLogger(__name__)

with suppress(PackageNotFoundError):  # a copied folder, which is not installed, has no version
    DagsterLibraryRegistry.register(
        "kafka-liveness-dagster", version("kafka-liveness-dagster"), is_dagster_package=False
    )


class KafkaLivenessResource(SecuredKafkaResource):
    """A Kafka cluster, with consumers for both lanes that use the run budget as their poll interval."""

    settings_class: ClassVar[type[KafkaResourceSettings]] = KafkaResourceSettings

    bootstrap_servers: str = Field(
        default=EMBEDDED,
        description="`host:port,host:port`, or `embedded`: a real broker this package starts on loopback.",
    )
    session_timeout_seconds: float | None = Field(
        default=None,
        description=(
            "Time without heartbeats after which the broker removes a process from the group. Unless set, "
            "10 s (KIP-62), or less if the run budget is shorter. Java's default is 45 s today (KIP-735): "
            "use it if the network or garbage collection pauses for long."
        ),
    )
    heartbeat_interval_seconds: float | None = Field(
        default=None, description="At most a third of the session timeout; 3 s, or that third, unless set."
    )
    group_protocol: Literal["classic", "consumer"] = Field(
        default="classic",
        description=(
            "`consumer` is KIP-848's: the broker assigns partitions. Session timeout and heartbeat interval "
            "are settings of the group (`kafka-configs --entity-type groups`), 45 s and 5 s by default."
        ),
    )
    default_max_batch_seconds: float | None = Field(
        default=DEFAULT_BUDGET_SECONDS,
        description=(
            "The run budget of a batch if nothing else sets it: KIP-62's 5 min for max.poll.interval.ms."
        ),
    )
    extra: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Further librdkafka settings, except those with their own field.",
    )

    @validated(ConsumerSettings)
    def consumer(
        self,
        *,
        topics: Sequence[str],
        group_id: str,
        context: Context = None,
        max_poll_records: int | None = None,
        max_batch_seconds: float | None = None,
        enable_parallel_rebalance: bool = False,
        batching: Batching = Batching(),
        crash_lag: CrashLag = CrashLag(),
        offsets: Offsets = Offsets(),
        membership: Membership = Membership(),
        ledger: LaneLedger | SinkLedger[Any] | None = None,
    ) -> LivenessConsumer:
        """Create a group member for the live lane, for a ``with`` block; its first ``poll`` joins the group.

        Args:
            topics: topics to subscribe to.
            group_id: the consumer group, ``G``; ``G.catch-up`` is its catch-up commit log.
            context: the op's or asset's context; None in scripts and tests.
            max_poll_records: maximum offsets in a batch (KIP-41); 500 unless set.
            max_batch_seconds: run budget of a batch in seconds; it overrides every other source.
            enable_parallel_rebalance: whether the lane skips ahead to the log end after a crash, and the
                skipped offsets become pending (KIP-333).
            batching: only its ``allocation``: how a batch is divided among the partitions.
            crash_lag: only its ``min_offsets`` and ``max_ranges``: gaps that the lane resumes in order, and
                that do not become pending.
            offsets: handling of missing, expired or lost offsets. The consumer's ``lost`` has the offsets
                that were written off.
            membership: kind of membership. With ``progress`` every ``heartbeat()`` counts as progress; Spark
                assets send one for each finished task.
            ledger: ledger of the target; Spark assets have one. None: the two commit logs decide alone.

        Raises:
            InvalidSettingError: settings contradict each other or the broker.
            BrokerUnreachableError: no broker responded within seconds.
        """
        from kafka_liveness_dagster.core.resume import ResumePolicy  # noqa: PLC0415
        from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer  # noqa: PLC0415 - confluent_kafka stays lazy

        self.create_missing_topics(topics, context.log.info if context else _log.info)
        live = LiveSettings(
            tuple(topics),
            group_id,
            DEFAULT_MAX_POLL_RECORDS if max_poll_records is None else max_poll_records,
            policy=ResumePolicy(
                enable_parallel_rebalance=enable_parallel_rebalance,
                min_crash_lag=crash_lag.min_offsets,
                max_owed_ranges=crash_lag.max_ranges,
                auto_offset_reset=offsets.auto_offset_reset,
                on_data_loss=offsets.on_data_loss,
                on_missing_rows=offsets.on_missing_rows,
            ),
            answers_rebalances_while_busy=membership.liveness == "progress",
            group_instance_id=membership.group_instance_id,
            is_greedy=batching.allocation == "greedy",
            ledger=LaneLedger.of(ledger),
        )
        budget = budget_of(context, argument=max_batch_seconds, default=self.default_max_batch_seconds)
        limits = self.cluster().broker_limits()
        timeouts = self._timeouts(budget, group_id, limits)
        self.settings().check(timeouts)
        link = run_context_of(
            context, away_seconds=(timeouts.process_timeout_ms + timeouts.session_timeout_ms) / 1000
        )
        if timeouts.warning:
            link.log.warning("%s", timeouts.warning)
        return LivenessConsumer(
            self.settings(),
            replace(live, recommit_seconds=limits.recommit_seconds),
            timeouts,
            run_context=link,
        )

    @validated(CatchUpSettings)
    def catch_up(
        self,
        *,
        group_id: str,
        ranges: Sequence[OffsetRange],
        reprocess: Sequence[OffsetRange] = (),
        context: Context = None,
        max_poll_records: int = 500,
        max_batch_seconds: float | None = None,
        offsets: Offsets = Offsets(),
        ledger: LaneLedger | SinkLedger[Any] | None = None,
    ) -> CatchUpConsumer:
        """Create a consumer of the catch-up lane, with manual assignment; it never joins ``group_id``.

        Args:
            group_id: the live lane's group.
            ranges: crash lag ranges, in any order.
            reprocess: ranges to process completely, even if they are done; their rows are replaced. They must
                be part of ``ranges``.
            context: the op's or asset's context; None in scripts and tests.
            max_poll_records: maximum offsets in a batch.
            max_batch_seconds: run budget of a batch in seconds; it overrides every other source.
            offsets: only its ``on_data_loss``: handling of pending offsets that expired. With ``write_off``
                they are recorded as done, and the consumer's ``lost`` has them.
            ledger: ledger of the target. None: the two commit logs decide alone.

        Raises:
            InvalidSettingError: a setting is invalid.
        """
        from kafka_liveness_dagster.kafka.catch_up.consumer import CatchUpConsumer  # noqa: PLC0415 - stays lazy

        budget = budget_of(context, argument=max_batch_seconds, default=self.default_max_batch_seconds)
        return CatchUpConsumer(
            self.settings(),
            group_id,
            ranges,
            reprocess=reprocess,
            max_poll_records=max_poll_records,
            budget=budget,
            run_context=run_context_of(context),
            on_data_loss=offsets.on_data_loss,
            ledger=LaneLedger.of(ledger),
        )

    def cluster(self) -> Cluster:
        """Return a read-only client of the cluster: it never joins a group and never commits."""
        from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415 - confluent_kafka stays lazy

        return Cluster(self.settings())

    def create_missing_topics(self, topics: Sequence[str], report: Callable[[str], object]) -> None:
        """Create missing topics, only on the embedded broker.

        Args:
            topics: names of the topics.
            report: called with a sentence for each created topic.
        """
        if resolve_env_vars(self.bootstrap_servers) == EMBEDDED:
            from kafka_liveness_dagster.kafka.topics import create_missing_topics  # noqa: PLC0415 - stays lazy

            create_missing_topics(self.settings(), topics, report)

    def _timeouts(self, budget: RunBudget, group_id: str, limits: BrokerLimits) -> Timeouts:
        return derive_timeouts(
            budget,
            session_seconds=self.session_timeout_seconds,
            heartbeat_seconds=self.heartbeat_interval_seconds,
            limits=limits,
            group=self.cluster().consumer_group_config(group_id)
            if self.group_protocol == "consumer"
            else None,
        )

    def settings(self) -> KafkaSettings:
        """Return addresses and security settings; start the embedded broker if no address is set."""
        servers = resolve_env_vars(self.bootstrap_servers)
        security = self.security()
        if servers == EMBEDDED:
            from kafka_liveness_dagster.embedded import services  # noqa: PLC0415 - only where it is used

            if security.client_config():
                raise InvalidSettingError(
                    "the embedded broker supports no security settings. Nothing was started. Fix: set "
                    "bootstrap_servers to the addresses of your brokers, or remove the security settings."
                )
            servers = services.ensure_services(which=("kafka",)).bootstrap_servers
        return KafkaSettings(
            servers, {name: resolve_env_vars(value) for name, value in self.extra.items()}, security
        )
