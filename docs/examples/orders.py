import dagster as dg
import kafka_liveness_dagster as kl

RUNNING = dg.DefaultSensorStatus.RUNNING

@kl.kafka_asset(
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
    max_poll_records=500_000,         # a batch: at most so many offsets
    max_batch_seconds=120,            # a hung batch gives up after this
    enable_parallel_rebalance=True,   # after a crash: newest data first
    sensor=kl.Sensor(default_status=RUNNING))
def orders(batch):                    # the Spark DataFrame of a batch
    return batch.selectExpr("topic", "partition", "offset",
                            "cast(value as string) AS order_json")

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    executor=dg.in_process_executor,  # kill -9 ends its step too
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
