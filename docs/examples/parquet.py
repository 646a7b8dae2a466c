import time
import uuid

import dagster as dg
import kafka_liveness_dagster as kl

class ParquetSink:
    """Folders of Parquet under a path: ``rows`` and ``writes``.

    ``writes`` lists a write when its rows are complete.
    """

    def __init__(self, path):
        self.path = path

    def __call__(self, replacement):
        # Named first: a zombie's name is older than its successor's
        write = f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}"
        folder = f"{self.path}/rows/write={write}"
        replacement.rows.write.parquet(folder)  # no reader sees it yet
        ranges = [(write, r.topic, r.partition, r.start, r.end)
                  for r in replacement.ranges]
        columns = ("write string, topic string, partition int, "
                   "start long, end long")
        spark = replacement.rows.sparkSession
        listed = spark.createDataFrame(ranges, columns)
        listed = listed.coalesce(1)  # one file: all or nothing
        replacement.raise_if_fenced()
        listed.write.parquet(f"{self.path}/writes/{write}")

    def read(self, spark):
        """Return the rows that the sink holds."""
        listed = spark.read.parquet(f"{self.path}/writes/*")
        # Collected before Spark lists the folders of the rows; else a
        # write could be listed whose rows Spark has not seen
        writes = spark.createDataFrame(listed.collect(), listed.schema)
        rows = spark.read.option("mergeSchema", "true").parquet(
            f"{self.path}/rows")
        return spark.sql(
            """
            WITH replaced AS (
              SELECT old.write, new.topic, new.partition,
                     new.start, new.end
              FROM {writes} old JOIN {writes} new
              ON old.topic = new.topic
              AND old.partition = new.partition
              AND old.write < new.write
              AND old.start < new.end AND new.start < old.end)
            SELECT * EXCEPT (write) FROM {rows} kept
            LEFT SEMI JOIN {writes} done ON kept.write = done.write
            LEFT ANTI JOIN replaced
              ON kept.write = replaced.write
              AND kept.topic = replaced.topic
              AND kept.partition = replaced.partition
              AND kept.offset >= replaced.start
              AND kept.offset < replaced.end
            """,
            rows=rows,
            writes=writes,
        )

@kl.kafka_asset(topics=["orders"], group_id="orders-parquet",
                sink=ParquetSink("/lake/orders"))
def orders(batch):
    return batch.selectExpr("topic", "partition", "offset",
                            "cast(value as string) AS order_json")

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
