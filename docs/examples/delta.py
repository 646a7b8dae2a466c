import dagster as dg
import kafka_liveness_dagster as kl
from pyspark.errors import PySparkException

CONFLICTS = ("DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED",
             "DELTA_PROTOCOL_CHANGED")

class DeltaSink:
    """A Delta table at a path; the first batch creates it."""

    def __init__(self, path, attempts=10):
        self.path, self.attempts = path, attempts

    def __call__(self, replacement):
        overwrite = (
            replacement.rows.write.format("delta").mode("overwrite")
            .partitionBy("topic", "partition")
            .option("replaceWhere", replacement.condition)
            # A new column is added, a missing one is null
            .option("mergeSchema", "true")
        )
        for attempt in range(1, self.attempts + 1):
            replacement.raise_if_fenced()
            try:
                return overwrite.save(self.path)
            except PySparkException as error:
                # The other lane, or a zombie, committed since this
                # attempt began
                found = error.getCondition() or ""
                is_conflict = found.startswith(CONFLICTS)
                if attempt == self.attempts or not is_conflict:
                    raise

@kl.kafka_asset(topics=["orders"], group_id="orders-delta",
                sink=DeltaSink("/lake/orders"))
def orders(batch):
    return batch.selectExpr("topic", "partition", "offset",
                            "cast(value as string) AS order_json")

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
