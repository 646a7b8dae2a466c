import dagster as dg
import kafka_liveness_dagster as kl

SCHEMA = """
    order_id long NOT NULL, placed_at timestamp,
    customer struct<name: string, city: string> NOT NULL,
    items array<struct<sku: string, price: decimal(10,2)>>
"""

@kl.kafka_asset(
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
    enable_parallel_rebalance=True,   # after a crash: newest data first
    batching=kl.Batching(on_bad_record="dead_letter"),
    sensor=kl.Sensor(default_status=dg.DefaultSensorStatus.RUNNING))
def orders(batch):
    order = kl.from_json(batch.value, SCHEMA)
    return batch.select(
        "topic", "partition", "offset", order.alias("o")
    ).selectExpr(
        "topic", "partition", "offset",
        "o.order_id", "o.placed_at", "o.customer.city AS city",
        "transform(o.items, i -> i.sku) AS skus",
        "aggregate(o.items, 0D, (sum, i) -> sum + i.price) AS total")

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    executor=dg.in_process_executor,  # kill -9 ends its step too
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
