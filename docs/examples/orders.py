import dagster as dg
import kafka_liveness_dagster as kl

@kl.kafka_asset(topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
                max_poll_records=500_000, max_batch_seconds=120, enable_parallel_rebalance=True,
                sensor=kl.Sensor(default_status=dg.DefaultSensorStatus.RUNNING))
def orders(batch):                       # a Spark DataFrame of exactly this batch's ranges
    return batch.selectExpr("topic", "partition", "offset", "cast(value as string) AS order_json")

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    executor=dg.in_process_executor,     # for backfills: a killed run leaves no step behind
    resources={"kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}))
