"""The package's main job as a story with real processes: ``kafka-liveness demo`` tells and judges it."""
