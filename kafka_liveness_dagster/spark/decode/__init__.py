"""Decode records of a schema registry in Spark."""
