import dagster as dg
import kafka_liveness_dagster as kl

@dg.op(config_schema={"what": str})
def tell(context):
    context.log.warning(context.op_config["what"])

@dg.job
def page_someone():
    tell()

def on_event(event):
    if isinstance(event, kl.MemberLeft) and not event.reason.in_good_order:
        return dg.RunRequest(run_config={"ops": {"tell": {"config": {"what": str(event)}}}})

@kl.kafka_asset(topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
                sensor=kl.Sensor(on_event=on_event, event_jobs=[page_someone]))
def orders(batch):
    return batch.selectExpr("topic", "partition", "offset", "cast(value as string) AS order_json")

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(jobs=[page_someone], resources={
    "kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}))
