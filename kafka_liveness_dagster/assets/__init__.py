"""What a declared Kafka asset gives Dagster: the decorator, the component, and the definitions they build."""
