"""What is measured.

One table of metrics, traces of batches, and whatever OpenTelemetry SDK there is to be told.
"""
