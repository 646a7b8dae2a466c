import dagster as dg
import kafka_liveness_dagster as kl

@kl.kafka_asset(topics=["orders"], group_id="orders-etl", table="lake.shop.orders")
def orders(batch, registry: kl.SchemaRegistryResource):
    return registry.decode(batch, "orders-value").select("topic", "partition", "offset", "value.*")

registry = kl.SchemaRegistryResource(
    url=dg.EnvVar("SCHEMA_REGISTRY_URL"),              # Apicurio: https://host/apis/ccompat/v7
    username=dg.EnvVar("SCHEMA_REGISTRY_USERNAME"),
    password=dg.EnvVar("SCHEMA_REGISTRY_PASSWORD"),
    ssl_ca_location=dg.EnvVar("SCHEMA_REGISTRY_CA"),   # leave it out where a public authority signed
)

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(resources={
    "kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource(), "registry": registry}))
