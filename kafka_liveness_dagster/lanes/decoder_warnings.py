"""Warn once in a run if its transform turns bad values into NULLs. Never changes rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

    from pyspark.sql import DataFrame


@dataclass
class DecoderWarnings:
    """The warnings of one run about its transform's decoders."""

    _is_done: bool = False

    def log_once(self, log: Logger, rows: DataFrame) -> None:
        """Log the warnings about the rows of the run's first batch.

        The plan of later batches is not read: with Python functions in it that takes milliseconds.
        """
        from kafka_liveness_dagster.spark.decode.lax_mode import lax_decoder_warnings  # noqa: PLC0415 - pyspark stays lazy

        if not self._is_done:
            self._is_done = True
            for warning in lax_decoder_warnings(rows):
                log.warning("%s", warning)
