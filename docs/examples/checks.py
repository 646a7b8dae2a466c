import dagster as dg
import kafka_liveness_dagster as kl

@kl.kafka_asset(
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
    sensor=kl.Sensor(max_lag=1_000_000),
    crash_lag=kl.CrashLag(max_age_seconds=3600))
def orders(batch):
    return batch.selectExpr("topic", "partition", "offset",
                            "cast(value as string) AS order_json")

# Only to notice that the sensor is off: see below
schedule = dg.ScheduleDefinition(
    job=orders.checks_job, cron_schedule="*/10 * * * *")

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    schedules=[schedule],
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
