"""How do assets and sensors reach Spark? A resource, embedded unless an address is given."""

from __future__ import annotations

from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

import dagster as dg
from pydantic import Field, PrivateAttr

from kafka_liveness_dagster.concurrency import run_in_daemon_thread
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import REMOTE
from kafka_liveness_dagster.resources.kafka import ResourceWithSecrets
from kafka_liveness_dagster.settings.asset import SparkResourceSettings
from kafka_liveness_dagster.settings.types import EMBEDDED
from kafka_liveness_dagster.settings.validation import resolve_env_vars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.resources.kafka import KafkaLivenessResource


class SparkConnectResource(ResourceWithSecrets):
    """A Spark Connect server. Each run has a session of its own, ended with the run."""

    settings_class: ClassVar[type[SparkResourceSettings]] = SparkResourceSettings
    addresses: ClassVar[tuple[str, ...]] = ("remote", "ui_url")

    remote: str = Field(
        default=EMBEDDED,
        repr=False,  # it carries the token
        description=(
            "`sc://host:port`, or `embedded`: a real server this package starts on loopback. An address "
            "with a token, `sc://host:port/;token=…`, only as dg.EnvVar."
        ),
    )
    ui_url: str | None = Field(
        default=None,
        description="Of the web UI of that Spark, `http://driver:4040`: runs link to it. Nothing is asked.",
    )
    connect_timeout_seconds: float = Field(
        default=120.0,
        description=(
            "How long a server that accepts connections may take to open a session. One that is not there "
            "fails at once."
        ),
    )
    _session: SparkSession | None = PrivateAttr(default=None)
    _opening_session: Future[SparkSession | None] | None = PrivateAttr(default=None)

    def session(self) -> SparkSession:
        """The session of this resource, opened at first use, and again after a restart of its server.

        Raises:
            SparkUnreachableError: no server answered, or it refused the token.
        """
        from kafka_liveness_dagster.spark.connect.connection import connection_of  # noqa: PLC0415 - pyspark stays lazy

        if self._opening_session is not None:
            wait([self._opening_session])  # an interrupt leaves it to be ended
            ahead, self._opening_session = self._opening_session, None
            self._session = ahead.result()
        old = self._session
        if (
            old is None or connection_of(old).is_aborted or old.client.is_closed
        ):  # as pyspark does when the server is another one
            self._session = self._connect(self._address())
        return self._session

    def open_ahead(self) -> None:
        """Begin to open the session; ``session()`` then returns it, or raises why there is none.

        No server is started for it. Half a second of a run's first, most of it Python's imports, while it
        joins its group.
        """
        if self._session is None and self._opening_session is None:
            self._opening_session = run_in_daemon_thread(self._new_session, "kafka-liveness-spark")

    def _new_session(self) -> SparkSession | None:
        address = self.running_address()
        return self._connect(address) if address else None

    def _connect(self, address: str) -> SparkSession:
        from kafka_liveness_dagster.spark.connect.session import connect  # noqa: PLC0415 - pyspark stays lazy

        def say(sentence: str) -> None:
            with suppress(Exception):  # Dagster's storage may fail just now
                dg.get_dagster_logger().warning(sentence)

        return connect(address, timeout_seconds=self.connect_timeout_seconds, report=say)

    def read(self, ranges: Sequence[OffsetRange], kafka: KafkaLivenessResource) -> DataFrame:
        """The records of exactly these ranges, by Spark's own Kafka source."""
        from kafka_liveness_dagster.spark.source import read_ranges  # noqa: PLC0415 - pyspark stays lazy

        return read_ranges(self.session(), ranges, kafka.settings().spark_options())

    def links(self) -> dict[str, dg.MetadataValue]:
        """To Spark's UI, for the events of a run, where somebody said where it is."""
        return {"spark_ui": dg.MetadataValue.url(str(resolve_env_vars(self.ui_url)))} if self.ui_url else {}

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002 - Dagster's signature
        """End the session.

        Caller: Dagster, when the run's resources are torn down. Affects: this run's session alone.
        """
        from kafka_liveness_dagster.spark.connect.session import close  # noqa: PLC0415 - pyspark stays lazy

        if self._session is not None:
            close(self._session)
            self._session = None
        if self._opening_session is not None:  # nobody has asked for it, and it may not be open yet
            self._opening_session.add_done_callback(_close_opened)
            self._opening_session = None

    def running_address(self) -> str | None:
        """The server's address.

        None where it is the embedded one and does not run: nothing is started for it.
        """
        from kafka_liveness_dagster.embedded import services  # noqa: PLC0415 - only where it is used

        if resolve_env_vars(self.remote) != EMBEDDED:
            return self._address()
        found = services.running_services()
        return found.spark_remote or None if found else None

    def _address(self) -> str:
        if (remote := str(resolve_env_vars(self.remote))) != EMBEDDED:
            if not REMOTE.matches(remote):  # what a variable holds is known only now; it may hold a token
                raise InvalidSettingError(
                    f"remote of SparkConnectResource is refused: wanted {REMOTE.description}"
                )
            return remote
        from kafka_liveness_dagster.embedded import services  # noqa: PLC0415 - only where it is used

        return services.ensure_services(which=("spark",)).spark_remote


def _close_opened(opened: Future[SparkSession | None]) -> None:
    from kafka_liveness_dagster.spark.connect.session import close  # noqa: PLC0415 - pyspark stays lazy

    if opened.exception() is None and (session := opened.result()) is not None:
        close(session)
