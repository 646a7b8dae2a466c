"""A user's module: its functions are defined when it is imported, before any Spark is there."""

from __future__ import annotations

import pandas as pd  # noqa: TC002 - pyspark looks at the annotations
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.types import StringType


@F.udf(StringType())
def shouted(value: bytes) -> str:
    """Row by row."""
    return value.decode().upper()


@F.pandas_udf(StringType())
def doubled(values: pd.Series) -> pd.Series:
    """Column by column."""
    return values.str.decode("utf-8") * 2


def by_module(batch):
    """Functions of the module."""
    return batch.select(
        "topic", "partition", "offset", shouted("value").alias("a"), doubled("value").alias("b")
    )


def by_itself(batch):
    """Functions of its own, with types as text."""

    @F.udf("string")
    def shouted(value):
        return value.decode().upper()

    @F.pandas_udf("string")
    def doubled(values: pd.Series) -> pd.Series:
        return values.str.decode("utf-8") * 2

    return batch.select(
        "topic", "partition", "offset", shouted("value").alias("a"), doubled("value").alias("b")
    )
