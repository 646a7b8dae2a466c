"""Run a SELECT over a batch, which the SQL calls ``batch``. Sends one query and creates no view.

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
    """Return the rows of ``sql`` over a batch.

    The query contains the batch. A temporary view would belong to the session. The next batch, or a batch of
    another thread, could then replace the view before Spark has run the frame.
    """
    return batch.sparkSession.sql(with_placeholder(sql), batch=batch)


def with_placeholder(sql: str) -> str:
    """Return the SELECT for Spark's ``sql(..., batch=frame)``: one placeholder, all other braces doubled.

    The SELECT becomes a subquery. It may have its own WITH; CREATE or DROP is a syntax error there.
    """
    only = sql.strip().removesuffix(";").replace("{", "{{").replace("}", "}}")
    # If the last line of the SQL is a comment, the parenthesis must be on a new line
    return f"WITH batch AS (SELECT * FROM {{batch}}) SELECT * FROM (\n{only}\n)"
