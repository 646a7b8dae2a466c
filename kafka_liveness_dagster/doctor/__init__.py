"""The checks of ``kafka-liveness doctor``: facts of a deployment, and rules that judge them."""
