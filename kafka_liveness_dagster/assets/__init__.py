"""Kafka assets for Dagster: the decorator, the component, and the definitions that they build."""
