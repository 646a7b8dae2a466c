"""Define the exit codes of all commands, and translate errors into them.

Imports neither Kafka's client nor Spark before an error is translated: ``--help`` answers at once.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from kafka_liveness_dagster.core.errors import InvalidSettingError, KafkaLivenessError

if TYPE_CHECKING:
    from collections.abc import Iterator

WELL = 0
"""The group is well, the check passed, or the command did its work."""
NOT_WELL = 1
"""The group is not well, the check failed, or nothing was done."""
USAGE = 2
"""The command line is invalid; click uses this code, too."""
NO_RESPONSE = 3
"""Kafka, Spark, the catalog or Dagster's storage did not respond, or refused access: there is no verdict."""


class NotRunningError(InvalidSettingError):
    """An embedded service does not run."""


class CommandError(click.ClickException):
    """The end of a command: a message on stderr, and ``NOT_WELL``."""

    exit_code = NOT_WELL


class NoResponseError(CommandError):
    """The end of a command that got no response: a message on stderr, and ``NO_RESPONSE``."""

    exit_code = NO_RESPONSE


class InvalidUsageError(CommandError):
    """The end of a command with an invalid setting: a message on stderr, and ``USAGE``."""

    exit_code = USAGE


_ERRORS = {one.exit_code: one for one in (CommandError, NoResponseError, InvalidUsageError)}


@contextmanager
def errors_as_exit_codes(*, reads_only: bool = False) -> Iterator[None]:
    """Turn this package's errors into a message without a traceback, and an exit code.

    Args:
        reads_only: whether the command only reads. Then a refused or failed request also leaves it without a
            verdict, and an invalid setting is one of the command line.
    """
    try:
        yield
    except KafkaLivenessError as error:
        raise _ERRORS[exit_code_of(error, reads_only=reads_only)](str(error)) from error


def exit_code_of(error: KafkaLivenessError, *, reads_only: bool = False) -> int:
    """Return the exit code of an error; ``errors_as_exit_codes`` has the argument."""
    from kafka_liveness_dagster.embedded.state import ServicesDownError  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.kafka import errors as kafka  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.group_status import NoSuchGroupError  # noqa: PLC0415
    from kafka_liveness_dagster.runs.storage import DagsterStorageError  # noqa: PLC0415
    from kafka_liveness_dagster.spark import errors as spark  # noqa: PLC0415

    no_response: tuple[type[KafkaLivenessError], ...] = (
        NotRunningError,
        ServicesDownError,
        kafka.BrokerUnreachableError,
        kafka.AccessRefusedError,
        spark.SparkUnreachableError,
        spark.SparkNotRespondingError,
        spark.StorageError,
        DagsterStorageError,
    )
    if reads_only:
        from kafka_liveness_dagster.core.ledger import UnknownLedgerFormatError  # noqa: PLC0415
        from kafka_liveness_dagster.core.partition_state import DataExpiredError  # noqa: PLC0415

        no_response += (
            kafka.KafkaRefusedError,
            spark.SparkFailedError,
            spark.TableUnreadableError,
            UnknownLedgerFormatError,
            DataExpiredError,
        )
    if isinstance(error, no_response):
        return NO_RESPONSE
    if isinstance(error, NoSuchGroupError):
        return NOT_WELL  # a group that has not begun looks like a mistyped name
    wrong_words = (InvalidSettingError, spark.TableSchemaError)
    return USAGE if reads_only and isinstance(error, wrong_words) else NOT_WELL
