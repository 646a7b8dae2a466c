import dagster as dg
import kafka_liveness_dagster as kl

kafka = kl.KafkaLivenessResource(
    bootstrap_servers=dg.EnvVar("KAFKA_BOOTSTRAP_SERVERS"),
    security_protocol="SASL_SSL",
    sasl_mechanism="OAUTHBEARER",
    sasl_oauthbearer_client_id=dg.EnvVar("KAFKA_CLIENT_ID"),
    sasl_oauthbearer_client_secret=dg.EnvVar("KAFKA_CLIENT_SECRET"),
    sasl_oauthbearer_token_endpoint_url=dg.EnvVar("KAFKA_TOKEN_URL"),
)
