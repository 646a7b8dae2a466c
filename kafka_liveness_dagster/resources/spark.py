"""Spark Connect resource for assets and sensors; embedded unless an address is given."""

from __future__ import annotations

from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar
from uuid import uuid4

import dagster as dg
from pydantic import Field, PrivateAttr

from kafka_liveness_dagster.concurrency import run_in_daemon_thread
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import REMOTE
from kafka_liveness_dagster.resources.kafka import ResourceWithSecrets
from kafka_liveness_dagster.runs.garbage_collection import freeze_imports
from kafka_liveness_dagster.settings.asset import SparkResourceSettings
from kafka_liveness_dagster.settings.types import EMBEDDED
from kafka_liveness_dagster.settings.validation import resolve_env_vars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.resources.kafka import KafkaLivenessResource


class SparkConnectResource(ResourceWithSecrets):
    """A Spark Connect server. Each run has its own session, which ends with the run."""

    settings_class: ClassVar[type[SparkResourceSettings]] = SparkResourceSettings
    addresses: ClassVar[tuple[str, ...]] = ("remote", "ui_url")

    remote: str = Field(
        default=EMBEDDED,
        repr=False,  # it may contain the token
        description=(
            "`sc://host:port`, or `embedded`: a real server this package starts on loopback. An address "
            "with a token, `sc://host:port/;token=…`, only as dg.EnvVar."
        ),
    )
    ui_url: str | None = Field(
        default=None,
        description="Address of Spark's web UI, `http://driver:4040`. Runs link to it, and never query it.",
    )
    connect_timeout_seconds: float = Field(
        default=120.0,
        description=(
            "Time limit for a server that accepts connections to open a session. An address without a "
            "server fails at once."
        ),
    )
    _session: SparkSession | None = PrivateAttr(default=None)
    _next_session_id: str | None = PrivateAttr(default=None)
    _opening_session: Future[SparkSession | None] | None = PrivateAttr(default=None)

    @property
    def next_session_id(self) -> str:
        """The id of the session that this resource opens next, unless the address names another one."""
        # Not before it is needed: equal resources of two components have to stay equal
        self._next_session_id = self._next_session_id or str(uuid4())
        return self._next_session_id

    def session(self) -> SparkSession:
        """Return the session of this resource, opened at first use and again after a restart of its server.

        Raises:
            SparkUnreachableError: no server responded, or it refused the token.
        """
        if self._opening_session is not None:
            wait([self._opening_session])  # after an interrupt here, teardown still ends the session
            ahead, self._opening_session = self._opening_session, None
            self._session = ahead.result()
        # Not before: two threads that import modules of a circle would wait for each other, and Python fails
        from kafka_liveness_dagster.spark.connect.connection import connection_of  # noqa: PLC0415 - pyspark stays lazy

        old = self._session
        if (
            old is None or connection_of(old).is_aborted or old.client.is_closed
        ):  # PySpark closes the client of a restarted server
            self._session = self._connect(self._address())
        return self._session

    def open_ahead(self) -> None:
        """Begin to open the session; ``session()`` then returns it, or raises the error.

        Starts no server. Opening takes the first half a second of a run, most of it Python's imports. The run
        creates its consumer during that time. Import no PySpark before ``session()`` has returned.
        """
        if self._session is None and self._opening_session is None:
            self._opening_session = run_in_daemon_thread(self._new_session, "kafka-liveness-spark")

    def _new_session(self) -> SparkSession | None:
        with freeze_imports():
            import kafka_liveness_dagster.spark.connect.session  # noqa: F401, PLC0415 - it imports PySpark
        address = self.running_address()
        return self._connect(address) if address else None

    def _connect(self, address: str) -> SparkSession:
        from kafka_liveness_dagster.spark.connect.session import connect  # noqa: PLC0415 - pyspark stays lazy

        def say(sentence: str) -> None:
            with suppress(Exception):  # Dagster's storage may fail at this moment
                dg.get_dagster_logger().warning(sentence)

        session_id = self.next_session_id
        self._next_session_id = None
        return connect(
            address, timeout_seconds=self.connect_timeout_seconds, session_id=session_id, report=say
        )

    def read(self, ranges: Sequence[OffsetRange], kafka: KafkaLivenessResource) -> DataFrame:
        """Return exactly the records of these ranges, read by Spark's own Kafka source."""
        from kafka_liveness_dagster.spark.source import read_ranges  # noqa: PLC0415 - pyspark stays lazy

        return read_ranges(self.session(), ranges, kafka.settings().spark_options())

    def links(self) -> dict[str, dg.MetadataValue]:
        """Return the link to Spark's UI for the events of a run; empty if ``ui_url`` is not set."""
        return {"spark_ui": dg.MetadataValue.url(str(resolve_env_vars(self.ui_url)))} if self.ui_url else {}

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002 - Dagster's signature
        """End the session.

        Caller: Dagster, when the run's resources are torn down. Affects: this run's session alone.
        """
        if self._session is not None:
            from kafka_liveness_dagster.spark.connect.session import close  # noqa: PLC0415 - pyspark stays lazy

            close(self._session)
            self._session = None
        if self._opening_session is not None:  # opened ahead but never used; it may not be open yet
            self._opening_session.add_done_callback(_close_opened)
            self._opening_session = None

    def running_address(self) -> str | None:
        """Return the server's address; None for an embedded server that does not run. Starts no server."""
        from kafka_liveness_dagster.embedded import services  # noqa: PLC0415 - only where it is used

        if resolve_env_vars(self.remote) != EMBEDDED:
            return self._address()
        found = services.running_services()
        return found.spark_remote or None if found else None

    def _address(self) -> str:
        if (remote := str(resolve_env_vars(self.remote))) != EMBEDDED:
            # An environment variable is read only here. Never show the value: it may contain a token
            if not REMOTE.matches(remote):
                raise InvalidSettingError(
                    f"remote of SparkConnectResource is invalid. No session was opened. Fix: set it to "
                    f"{REMOTE.description}."
                )
            return remote
        from kafka_liveness_dagster.embedded import services  # noqa: PLC0415 - only where it is used

        return services.ensure_services(which=("spark",)).spark_remote


def _close_opened(opened: Future[SparkSession | None]) -> None:
    from kafka_liveness_dagster.spark.connect.session import close  # noqa: PLC0415 - pyspark stays lazy

    if opened.exception() is None and (session := opened.result()) is not None:
        close(session)
