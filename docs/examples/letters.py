import dagster as dg
import kafka_liveness_dagster as kl

@kl.kafka_asset(
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
    batching=kl.Batching(on_bad_record="dead_letter",
                         max_dead_letters=20))
def orders(batch):
    # A value that is not a number makes the outer cast fail
    order_id = "cast(cast(value AS string) AS bigint) AS order_id"
    return batch.selectExpr("topic", "partition", "offset", order_id)

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
