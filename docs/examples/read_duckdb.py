import duckdb

def orders(lake, table):
    """All rows, in the order of the topic.

    Returns a relation: DuckDB reads only the data that you query.
    """
    db = duckdb.connect()
    db.install_extension("iceberg")  # a download, once a machine
    db.load_extension("iceberg")
    # The current path: load the table again to see new rows
    metadata = lake.load_table(table).metadata_location
    return db.sql(
        "FROM iceberg_scan(?) "
        'ORDER BY topic, "partition", "offset"', params=[metadata])
