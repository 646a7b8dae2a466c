"""Metrics and traces: one table of metrics, traces of batches, and their export by OpenTelemetry's SDK."""
