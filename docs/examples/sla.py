import dagster as dg
import kafka_liveness_dagster as kl

@kl.kafka_asset(
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
    sla=kl.Sla(fresh_seconds=30, complete_minutes=15))
def orders(batch):
    return batch.selectExpr("topic", "partition", "offset",
                            "cast(value as string) AS order_json")

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
