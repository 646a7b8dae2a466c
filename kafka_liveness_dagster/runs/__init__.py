"""A run as Dagster and the host know it: its tags, its budget, its process, its signs of life."""
