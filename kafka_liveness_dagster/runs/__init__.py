"""The facts of a run in Dagster and on its host: tags, budget, process and heartbeats."""
