"""The Kafka cluster and the Spark Connect server, as Dagster's resources."""
