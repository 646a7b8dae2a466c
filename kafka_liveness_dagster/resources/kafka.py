"""How do assets, sensors and scripts reach Kafka? A resource, embedded unless an address is given."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, ClassVar, Literal

from dagster_shared.libraries import DagsterLibraryRegistry
from pydantic import Field

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.timeouts import DEFAULT_BUDGET_SECONDS, derive
from kafka_liveness_dagster.kafka.config import DEFAULT_MAX_POLL_RECORDS, KafkaSettings, LiveSettings
from kafka_liveness_dagster.resources.security import SecuredKafkaResource
from kafka_liveness_dagster.runs.link import link_of
from kafka_liveness_dagster.runs.tags import Context, budget_of
from kafka_liveness_dagster.settings.consumers import CatchUpSettings, ConsumerSettings
from kafka_liveness_dagster.settings.declarations import KafkaResourceSettings
from kafka_liveness_dagster.settings.declared import checked, resolved
from kafka_liveness_dagster.settings.groups import Batching, CrashLag, Membership, Offsets
from kafka_liveness_dagster.settings.kinds import EMBEDDED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kafka_liveness_dagster.core.limits import BrokerLimits
    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.core.timeouts import Budget, Timeouts
    from kafka_liveness_dagster.core.witnesses import Witness
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.catch_up import CatchUpConsumer
    from kafka_liveness_dagster.kafka.consumer import LivenessConsumer

_log = logging.getLogger(__name__)

with suppress(PackageNotFoundError):  # a folder that was copied, not installed, has no version to tell
    DagsterLibraryRegistry.register(
        "kafka-liveness-dagster", version("kafka-liveness-dagster"), is_dagster_package=False
    )


class KafkaLivenessResource(SecuredKafkaResource):
    """A Kafka cluster, and consumers on it whose poll interval is their run's budget."""

    checked_by: ClassVar[type[KafkaResourceSettings]] = KafkaResourceSettings

    bootstrap_servers: str = Field(
        default=EMBEDDED,
        description="`host:port,host:port`, or `embedded`: a real broker this package starts on loopback.",
    )
    session_timeout_seconds: float | None = Field(
        default=None,
        description="How fast a dead process is noticed. 10 s (KIP-62) unless set, less when the budget is shorter. "
        "Java's default is 45 s today (KIP-735): choose that where networks or garbage collectors pause for long.",
    )
    heartbeat_interval_seconds: float | None = Field(
        default=None, description="At most a third of the session timeout; 3 s, or that third, unless set."
    )
    group_protocol: Literal["classic", "consumer"] = Field(
        default="classic",
        description="`consumer` is KIP-848's: the broker assigns, and session timeout and heartbeat interval are the "
        "group's (`kafka-configs --entity-type groups`), 45 s and 5 s unless changed there.",
    )
    default_max_batch_seconds: float | None = Field(
        default=DEFAULT_BUDGET_SECONDS,
        description="The run budget of a batch when nothing else says it: KIP-62's 5 min for max.poll.interval.ms.",
    )
    extra: dict[str, str] = Field(
        default_factory=dict, repr=False, description="Further librdkafka settings; none that has a field of its own."
    )

    @checked(ConsumerSettings)
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
        witness: Witness | None = None,
    ) -> LivenessConsumer:
        """A group member for the live lane; use it in a ``with`` block. The first ``poll`` joins the group.

        Args:
            topics: what to subscribe to.
            group_id: the consumer group, ``G``; ``G.catch-up`` is its second commit log.
            context: the op's or asset's context, None in scripts and tests.
            max_poll_records: at most this many offsets in a batch (KIP-41); 500 unless set.
            max_batch_seconds: the budget of a batch, before every other source of it.
            enable_parallel_rebalance: after a crash go on at the log end and owe what was skipped (KIP-333).
            batching: how a batch is shared out: its ``allocation``.
            crash_lag: what is resumed in order instead of owed: its ``min_offsets`` and ``max_ranges``.
            offsets: what to do where offsets, or what the witness has of them, are not as they should be. What was lost
                and passed is found in ``lost``.
            membership: how it is a member. With ``progress`` every ``heartbeat()`` is a sign of life; Spark assets send
                one for each finished task.
            witness: who knows what is really there; Spark assets have one. Else both commit logs alone are asked.

        Raises:
            InvalidSettingError: settings that contradict each other or the broker.
            BrokerUnreachableError: no broker answered within seconds.
        """
        from kafka_liveness_dagster.core.resume import ResumePolicy  # noqa: PLC0415
        from kafka_liveness_dagster.kafka.consumer import LivenessConsumer  # noqa: PLC0415 - confluent_kafka stays lazy

        self.make_missing(topics, context.log.info if context else _log.info)
        live = LiveSettings(
            tuple(topics),
            group_id,
            DEFAULT_MAX_POLL_RECORDS if max_poll_records is None else max_poll_records,
            ResumePolicy(
                enable_parallel_rebalance=enable_parallel_rebalance,
                min_crash_lag=crash_lag.min_offsets,
                max_owed_ranges=crash_lag.max_ranges,
                auto_offset_reset=offsets.auto_offset_reset,
                on_data_loss=offsets.on_data_loss,
                on_missing_rows=offsets.on_missing_rows,
            ),
            serves_while_busy=membership.liveness == "progress",
            group_instance_id=membership.group_instance_id,
            greedy=batching.allocation == "greedy",
            witness=witness,
        )
        budget = budget_of(context, argument=max_batch_seconds, default=self.default_max_batch_seconds)
        limits = self.cluster().broker_limits()
        timeouts = self._timeouts(budget, group_id, limits)
        self.settings().check(timeouts)
        link = link_of(context, away_seconds=(timeouts.process_ms + timeouts.session_ms) / 1000)
        if timeouts.warning:
            link.log.warning("%s", timeouts.warning)
        return LivenessConsumer(self.settings(), replace(live, renew_seconds=limits.renew_seconds), timeouts, link)

    @checked(CatchUpSettings)
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
        witness: Witness | None = None,
    ) -> CatchUpConsumer:
        """The catch-up lane for these crash lag ranges: manual assignment, never a member of ``group_id``.

        Args:
            group_id: the live lane's group.
            ranges: crash lag ranges, in any order.
            reprocess: those of them that are processed whole, done or not: their rows are replaced.
            context: the op's or asset's context, None in scripts and tests.
            max_poll_records: at most this many offsets in a batch.
            max_batch_seconds: the budget of a batch, before every other source of it.
            offsets: what to do with pending offsets that expired: its ``on_data_loss``. With ``write_off`` they are
                recorded as done and found in ``lost``.
            witness: who knows what is really there; else both commit logs alone are asked.

        Raises:
            InvalidSettingError: a setting that is none.
        """
        from kafka_liveness_dagster.kafka.catch_up import CatchUpConsumer  # noqa: PLC0415 - stays lazy

        budget = budget_of(context, argument=max_batch_seconds, default=self.default_max_batch_seconds)
        return CatchUpConsumer(
            self.settings(),
            group_id,
            ranges,
            again=reprocess,
            max_poll_records=max_poll_records,
            budget=budget,
            link=link_of(context),
            on_data_loss=offsets.on_data_loss,
            witness=witness,
        )

    def cluster(self) -> Cluster:
        """The cluster, to be looked at: never joins, never commits."""
        from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415 - confluent_kafka stays lazy

        return Cluster(self.settings())

    def make_missing(self, topics: Sequence[str], say: Callable[[str], object]) -> None:
        """Make the topics that do not exist, on the embedded broker and only there; ``say`` is told of each."""
        if resolved(self.bootstrap_servers) == EMBEDDED:
            from kafka_liveness_dagster.kafka.topics import create_missing  # noqa: PLC0415 - stays lazy

            create_missing(self.settings(), topics, say)

    def _timeouts(self, budget: Budget, group_id: str, limits: BrokerLimits) -> Timeouts:
        return derive(
            budget,
            session_seconds=self.session_timeout_seconds,
            heartbeat_seconds=self.heartbeat_interval_seconds,
            limits=limits,
            group=self.cluster().group_timeouts(group_id) if self.group_protocol == "consumer" else None,
        )

    def settings(self) -> KafkaSettings:
        """The addresses and security settings; starts the embedded broker when it is the one meant."""
        servers = resolved(self.bootstrap_servers)
        security = self.security()
        if servers == EMBEDDED:
            from kafka_liveness_dagster.embedded import services  # noqa: PLC0415 - only where it is used

            if security.client():
                raise InvalidSettingError("the embedded broker knows no security: name yours with bootstrap_servers")
            servers = services.ensure(which=("kafka",)).bootstrap_servers
        return KafkaSettings(servers, {name: resolved(value) for name, value in self.extra.items()}, security)
