"""Records of topic orders become rows of lake.shop.orders."""

import dagster as dg
import kafka_liveness_dagster as kl

SCHEMA = "id BIGINT NOT NULL, price DOUBLE"


@kl.kafka_asset(
    topics=["orders"],
    group_id="orders-etl",
    table="lake.shop.orders",
    max_poll_records=500_000,        # most offsets of a batch
    max_batch_seconds=120,           # a slower batch is canceled
    enable_parallel_rebalance=True,  # after a crash: newest data first
    batching=kl.Batching(on_bad_record="dead_letter"),
    sensor=kl.Sensor(default_status=dg.DefaultSensorStatus.RUNNING),
)
def orders(batch):
    """One row for each JSON record."""
    record = kl.from_json(batch.value, SCHEMA)
    return batch.select(
        "topic", "partition", "offset", record.alias("r")
    ).selectExpr("topic", "partition", "offset", "r.*")


defs = dg.Definitions.merge(
    orders.definitions,
    dg.Definitions(
        executor=dg.in_process_executor,  # kill -9 ends the step, too
        resources={  # without addresses: servers on this machine
            "kafka": kl.KafkaLivenessResource(),
            "spark": kl.SparkConnectResource(),
        },
    ),
)
