"""Dagster resources for the Kafka cluster, the Spark Connect server and the schema registry."""
