import dagster as dg
import kafka_liveness_dagster as kl

OFF = dg.DefaultSensorStatus.STOPPED

@kl.kafka_asset(
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
    idle_seconds=60,                  # ends the run at the log end
    sensor=kl.Sensor(default_status=OFF))
def orders(batch):
    return batch.selectExpr("topic", "partition", "offset",
                            "cast(value AS string) AS order_json")

nightly = dg.ScheduleDefinition(
    job=orders.live_job, cron_schedule="0 2 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING)

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    schedules=[nightly],
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
