"""What users declare: a Kafka asset, in Python or in YAML, and the definitions it gives."""
