"""Iceberg tables: writes, their ledger, schema and maintenance."""
