"""What does this SELECT give of a batch, when it calls the batch ``batch``? Sends one query; creates no view.

>>> print(with_placeholder("SELECT offset FROM batch WHERE value RLIKE '{2}'"))
WITH batch AS (SELECT * FROM {batch}) SELECT * FROM (
SELECT offset FROM batch WHERE value RLIKE '{{2}}'
)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run_select(batch: DataFrame, sql: str) -> DataFrame:
    """The rows of ``sql`` over a batch.

    The batch travels inside the query: a temporary view would be the session's, where the next batch, or one
    in another thread, would replace it under a frame that Spark has not run yet.
    """
    return batch.sparkSession.sql(with_placeholder(sql), batch=batch)


def with_placeholder(sql: str) -> str:
    """The SELECT as Spark's ``sql(..., batch=frame)`` takes it: one placeholder, all other braces doubled.

    As a subquery it may have a WITH of its own, and cannot be anything but a query: CREATE or DROP is a
    syntax error.
    """
    only = sql.strip().removesuffix(";").replace("{", "{{").replace("}", "}}")
    # The last line of the SQL may be a comment, which ends with its line
    return f"WITH batch AS (SELECT * FROM {{batch}}) SELECT * FROM (\n{only}\n)"
