"""Kafka through confluent-kafka: the group member, the catch-up lane, and read-only looks at a cluster."""
