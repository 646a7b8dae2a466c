import dagster as dg
import kafka_liveness_dagster as kl

@kl.kafka_asset(
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
    iceberg=kl.Iceberg(snapshots="append",
                       partition_by=["days(placed_at)"],
                       sort_by=["customer"]))
def orders(batch):
    return batch.selectExpr("topic", "partition", "offset",
                            "timestamp AS placed_at",
                            "cast(key AS string) AS customer")

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
