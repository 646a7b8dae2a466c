"""The command ``kafka-liveness``."""
