import dagster as dg
import kafka_liveness_dagster as kl

@dg.op(config_schema={"event": str})
def log_event(context):
    context.log.warning(context.op_config["event"])

@dg.job
def page_someone():
    log_event()

def on_event(event):
    left = isinstance(event, kl.MemberLeft)
    if left and not event.reason.in_good_order:
        config = {"event": str(event)}
        return dg.RunRequest(
            run_config={"ops": {"log_event": {"config": config}}})

@kl.kafka_asset(
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
    sensor=kl.Sensor(on_event=on_event, event_jobs=[page_someone]))
def orders(batch):
    return batch.selectExpr("topic", "partition", "offset",
                            "cast(value as string) AS order_json")

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    jobs=[page_someone],
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
