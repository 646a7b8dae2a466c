import dagster as dg
import kafka_liveness_dagster as kl

RUNNING = dg.DefaultScheduleStatus.RUNNING

@kl.kafka_asset(
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
    max_poll_records=1_000_000,
    batching=kl.Batching(commit_interval_seconds=60,
                         max_batch_bytes=256 * 2**20),
    maintenance=kl.Maintenance(default_status=RUNNING))
def orders(batch):
    return batch.selectExpr("topic", "partition", "offset",
                            "cast(value AS string) AS order_json")

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
