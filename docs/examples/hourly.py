import dagster as dg
import kafka_liveness_dagster as kl

@kl.kafka_asset(topics=["orders"], group_id="orders-etl", table="lake.shop.orders", enable_parallel_rebalance=True,
                complete_every="1h", completeness=kl.Completeness(start="2026-11-01", allowed_lateness_seconds=300.0))
def orders(batch):
    return batch.select("topic", "partition", "offset", "timestamp")

@dg.asset(deps=[orders.windows], partitions_def=orders.windows.partitions_def,
          automation_condition=dg.AutomationCondition.eager().without(dg.AutomationCondition.in_latest_time_window()))
def orders_an_hour(context: dg.AssetExecutionContext, spark: kl.SparkConnectResource) -> dg.MaterializeResult:
    begin, end = context.partition_time_window
    rows = spark.session().table(orders.target)
    of_hour = rows.where((rows["timestamp"] >= begin) & (rows["timestamp"] < end))
    return dg.MaterializeResult(metadata={"orders": of_hour.count()})

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    assets=[orders_an_hour], resources={"kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}))
