import polars as pl

def orders(lake, table, since=0):
    """Rows from an offset on, in the order of the topic.

    Polars skips files without such a row.
    """
    rows = pl.scan_iceberg(lake.load_table(table))
    rows = rows.filter(pl.col("offset") >= since)
    return rows.sort("topic", "partition", "offset").collect()
