import dagster as dg
import kafka_liveness_dagster as kl

@kl.kafka_asset(
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders")
def orders(batch):
    return batch.selectExpr("topic", "partition", "offset",
                            "cast(key AS string) AS customer")

@dg.asset(deps=["orders"])
def report(spark: kl.SparkConnectResource) -> dg.MaterializeResult:
    rows = spark.session().table(orders.target).count()
    return dg.MaterializeResult(metadata={"orders": rows})

orders_and_report = dg.define_asset_job(
    "orders_and_report", ["orders", "report"],
    executor_def=dg.in_process_executor)
defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    assets=[report], jobs=[orders_and_report],
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
