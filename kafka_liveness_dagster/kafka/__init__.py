"""Kafka through confluent-kafka: the group member, the catch-up lane, and read-only cluster requests."""
