import dagster as dg
import kafka_liveness_dagster as kl

HOURS = dg.HourlyPartitionsDefinition(start_date="2026-11-01-00:00")

@dg.asset(deps=["orders_by_hour"], partitions_def=HOURS,
          automation_condition=dg.AutomationCondition.eager())
def orders_an_hour(
    context: dg.AssetExecutionContext, spark: kl.SparkConnectResource,
) -> dg.MaterializeResult:
    begin, end = context.partition_time_window
    rows = spark.session().table("lake.shop.orders")
    time = rows["timestamp"]
    of_hour = rows.where((time >= begin) & (time < end))
    return dg.MaterializeResult(metadata={"orders": of_hour.count()})
