"""The catalog of a Spark that is started here, which docs/deployment.md leaves to the reader."""

from __future__ import annotations


def lake(database, warehouse):
    """``spark-defaults.conf`` for a catalog in SQLite and tables in a folder, as for embedded services."""
    name = "spark.sql.catalog.lake"
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        name: "org.apache.iceberg.spark.SparkCatalog",
        f"{name}.type": "jdbc",
        f"{name}.uri": f"jdbc:sqlite:{database}?busy_timeout=10000",
        f"{name}.jdbc.schema-version": "V1",
        f"{name}.warehouse": warehouse,
        f"{name}.cache-enabled": "false",
    }
