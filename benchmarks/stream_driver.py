"""The peer of `crash_to_fresh`.

Structured Streaming with Spark in its process, which goes on from its checkpoint.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(options: str, topic: str, table: str, checkpoint: str) -> None:
    """Write a topic into a table until somebody ends this."""
    spark = SparkSession.builder.getOrCreate()
    source = spark.readStream.format("kafka").options(**json.loads(options)).option("subscribe", topic)
    rows = source.option("startingOffsets", "earliest").load()
    rows = rows.selectExpr("topic", "partition", "offset", "CAST(value AS string) AS order_json")
    writer = rows.writeStream.format("iceberg").outputMode("append").option("fanout-enabled", "true")
    writer.option("checkpointLocation", checkpoint).toTable(table).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
