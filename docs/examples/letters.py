import dagster as dg
import kafka_liveness_dagster as kl

@kl.kafka_asset(
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
    batching=kl.Batching(on_bad_record="dead_letter",
                         max_dead_letters=20))
def orders(batch):
    # A value that is not JSON, or does not fit, is a bad record
    order = kl.from_json(batch.value, "id BIGINT NOT NULL, item STRING")
    return batch.select(
        "topic", "partition", "offset", order.alias("o")
    ).selectExpr("topic", "partition", "offset", "o.*")

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
