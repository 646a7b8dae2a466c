import dagster as dg
import kafka_liveness_dagster as kl

ON = dg.DefaultSensorStatus.RUNNING

@kl.kafka_asset(
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
    enable_parallel_rebalance=True, complete_every="1h",
    completeness=kl.Completeness(
        start="2026-11-01", allowed_lateness_seconds=300.0),
    sensor=kl.Sensor(default_status=ON))
def orders(batch):
    return batch.select("topic", "partition", "offset", "timestamp")

Condition = dg.AutomationCondition
new_hour = Condition.newly_requested() | Condition.newly_updated()
each_complete_hour = (
    Condition.eager()
    # any hour, not only the newest
    .without(Condition.in_latest_time_window())
    # earlier hours, too
    .replace("handled", new_hour)
)

@dg.asset(deps=[orders.windows],
          partitions_def=orders.windows.partitions_def,
          automation_condition=each_complete_hour)
def orders_an_hour(
    context: dg.AssetExecutionContext, spark: kl.SparkConnectResource,
) -> dg.MaterializeResult:
    begin, end = context.partition_time_window
    rows = spark.session().table(orders.target)
    time = rows["timestamp"]
    of_hour = rows.where((time >= begin) & (time < end))
    return dg.MaterializeResult(metadata={"orders": of_hour.count()})

automation = dg.AutomationConditionSensorDefinition(
    "orders_an_hour_automation", target=[orders_an_hour],
    default_status=ON)

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    assets=[orders_an_hour], sensors=[automation],
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
