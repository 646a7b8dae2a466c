"""Prove that a live run's rows are in the table before the run ends green. Never writes and never commits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import KafkaLivenessError

if TYPE_CHECKING:
    from logging import Logger

    from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 5.0


def check_rows(consumer: LivenessConsumer, log: Logger, limit_seconds: float, batches: int) -> None:
    """Check the rows of the run's partitions once more, as its last step: without lag no later run would.

    While Kafka, Spark or the catalog do not respond the check is retried, so that a hiccup fails no run whose
    batches are all committed.

    Args:
        consumer: it has left its group, so no process timeout limits the check.
        log: the run's.
        limit_seconds: for how long to retry.
        batches: how many the run has committed; with none it proves nothing new, and may end without the
            check.

    Raises:
        RowsMissingError: the table lost rows of committed offsets.
        KafkaLivenessError: the check could not be made within the limit; of a custom sink its own error.
    """
    give_up_at = time.monotonic() + limit_seconds
    pause = _FIRST_PAUSE_SECONDS
    while (error := _try_check(consumer)) is not None:
        if time.monotonic() + pause < give_up_at:
            log.warning("The rows of this run could not be checked; retrying in %.1f s: %s", pause, error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        elif batches:
            raise error
        else:
            log.warning(
                "The table was not checked before the end of this run, which committed nothing: %s", error
            )
            return


def _try_check(consumer: LivenessConsumer) -> Exception | None:
    """Check the rows once; return why it could not be done, None when it was."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - pyspark stays lazy

    from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError  # noqa: PLC0415 - so does confluent_kafka
    from kafka_liveness_dagster.spark.error_classification import summarize  # noqa: PLC0415
    from kafka_liveness_dagster.spark.errors import (  # noqa: PLC0415
        SparkNotRespondingError,
        SparkUnreachableError,
        TableUnreadableError,
    )

    try:
        consumer.check_rows()
    except (
        BrokerUnreachableError,
        SparkNotRespondingError,
        SparkUnreachableError,
        TableUnreadableError,
    ) as error:
        return error
    except KafkaLivenessError:
        raise
    except PySparkException as error:  # the server was lost, or refused the session
        unread = TableUnreadableError(
            f"The rows of this run could not be checked ({summarize(error)}). All its batches are in the "
            "table and committed. Fix: look at Spark's log; the next live run checks them"
        )
        unread.__cause__ = error
        return unread
    except Exception as error:  # noqa: BLE001 - of a custom sink's covered(); raised when the time is up
        return error
    return None
