"""Decode records in the wire format of a schema registry, in Spark."""
