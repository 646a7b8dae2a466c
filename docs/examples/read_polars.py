import polars as pl

def orders(lake, table, since=0):
    """Rows from an offset on, in the order of the topic; of files without one nothing is read."""
    rows = pl.scan_iceberg(lake.load_table(table))
    return rows.filter(pl.col("offset") >= since).sort("topic", "partition", "offset").collect()
