import dagster as dg
import kafka_liveness_dagster as kl

@kl.kafka_asset(
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
    materialize_interval_seconds=300)
def orders(batch):
    return batch.selectExpr("topic", "partition", "offset",
                            "cast(key AS string) AS customer")

@dg.asset(deps=["orders"],
          automation_condition=dg.AutomationCondition.eager())
def customers(
    context: dg.AssetExecutionContext, spark: kl.SparkConnectResource,
) -> dg.MaterializeResult:
    newest = context.instance.get_latest_materialization_event(
        dg.AssetKey("orders")).asset_materialization
    table = newest.metadata["dagster/table_name"].value
    snapshot = newest.tags["dagster/data_version"]
    reader = spark.session().read.option("versionAsOf", snapshot)
    names = reader.table(table).select("customer").distinct()
    return dg.MaterializeResult(metadata={"customers": names.count()})

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    assets=[customers],
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
