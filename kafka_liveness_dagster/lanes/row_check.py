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
    """Check the rows of the run's partitions as its last step, because without lag no later run checks them.

    While Kafka, Spark or the catalog do not respond, the check is retried. So a short outage fails no run
    whose batches are all committed.

    Args:
        consumer: consumer that has left its group, so that no process timeout limits the check.
        log: log of the run.
        limit_seconds: longest time of retries.
        batches: number of the run's committed batches; without any the run may end without the check.

    Raises:
        RowsMissingError: the table lost rows of committed offsets.
        KafkaLivenessError: the check was impossible within the limit; a custom sink raises its own error.
    """
    give_up_at = time.monotonic() + limit_seconds
    pause = _FIRST_PAUSE_SECONDS
    while (error := _try_check(consumer)) is not None:
        if time.monotonic() + pause < give_up_at:
            log.warning("Could not check the rows of this run; retrying in %.1f s: %s", pause, error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        elif batches:
            raise error
        else:
            log.warning(
                "Did not check the table before the end of this run, which committed nothing: %s", error
            )
            return


def _try_check(consumer: LivenessConsumer) -> Exception | None:
    """Check the rows once; return the error that prevented the check, or None."""
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
            f"The rows of this run could not be checked ({summarize(error)}). All its batches are in "
            "the table and committed. Fix: read Spark's log; the next live run checks the rows"
        )
        unread.__cause__ = error
        return unread
    except Exception as error:  # noqa: BLE001 - of a custom sink's covered(); raised when the time is up
        return error
    return None
