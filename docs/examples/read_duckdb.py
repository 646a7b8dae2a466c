import duckdb

def orders(lake, table):
    """All rows, in the order of the topic: a relation that reads what is asked of it."""
    db = duckdb.connect()
    db.install_extension("iceberg")                        # a download of DuckDB's, once a machine
    db.load_extension("iceberg")
    metadata = lake.load_table(table).metadata_location    # of now: ask anew for what is new
    return db.sql('FROM iceberg_scan(?) ORDER BY topic, "partition", "offset"', params=[metadata])
