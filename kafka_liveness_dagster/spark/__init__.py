"""Data plane: Spark reads the planned ranges and writes them so that a replay replaces its own rows."""
