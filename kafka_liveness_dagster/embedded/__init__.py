"""Run a real Kafka and a real Spark Connect server as child processes, so that a laptop needs neither."""
