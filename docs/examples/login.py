import dagster as dg
import kafka_liveness_dagster as kl

@kl.kafka_asset(
    topics=["orders"], group_id="orders-etl", table="lake.shop.orders",
    enable_parallel_rebalance=True)
def orders(batch):
    return batch.selectExpr("topic", "partition", "offset",
                            "cast(value as string) AS order_json")

kafka = kl.KafkaLivenessResource(
    bootstrap_servers=dg.EnvVar("KAFKA_BOOTSTRAP_SERVERS"),
    security_protocol="SASL_SSL",
    sasl_mechanism="SCRAM-SHA-512",
    sasl_username=dg.EnvVar("KAFKA_USERNAME"),
    sasl_password=dg.EnvVar("KAFKA_PASSWORD"),
    # leave it out if a public authority signed the certificates
    ssl_ca_location=dg.EnvVar("KAFKA_CA_FILE"),
)
spark = kl.SparkConnectResource(remote=dg.EnvVar("SPARK_REMOTE"))

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    resources={"kafka": kafka, "spark": spark}))
