import dagster as dg
import kafka_liveness_dagster as kl

@kl.kafka_asset(topics=["orders"], group_id="orders-etl",
                table="lake.shop.orders")
def orders(batch, registry: kl.SchemaRegistryResource):
    decoded = registry.decode(batch, "orders-value")
    return decoded.select("topic", "partition", "offset", "value.*")

registry = kl.SchemaRegistryResource(
    # Apicurio: https://host/apis/ccompat/v7
    url=dg.EnvVar("SCHEMA_REGISTRY_URL"),
    username=dg.EnvVar("SCHEMA_REGISTRY_USERNAME"),
    password=dg.EnvVar("SCHEMA_REGISTRY_PASSWORD"),
    # Omit it if a public authority signed the certificate
    ssl_ca_location=dg.EnvVar("SCHEMA_REGISTRY_CA"),
)

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource(),
               "registry": registry}))
