import dagster as dg
import kafka_liveness_dagster as kl

def as_text(batch):
    return batch.selectExpr("topic", "partition", "offset",
                            "cast(value AS string) AS json")

def pipeline(topic):
    return kl.kafka_asset(
        topics=[topic], group_id=f"{topic}-etl",
        table=f"lake.shop.{topic}", name=topic)(as_text)

assets = [pipeline(topic) for topic in ("orders", "payments")]

# Before definitions, which have no sensor from here on
groups_sensor = kl.build_shared_sensor(
    assets, name="groups_sensor",
    default_status=dg.DefaultSensorStatus.RUNNING)

defs = dg.Definitions.merge(
    *(asset.definitions for asset in assets),
    dg.Definitions(
        sensors=[groups_sensor],
        resources={"kafka": kl.KafkaLivenessResource(),
                   "spark": kl.SparkConnectResource()}))
