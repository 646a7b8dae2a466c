def copy(spark, table, into, checkpoint):
    """Append a table's new rows to another, for example each hour."""
    new = spark.readStream.format("iceberg").load(table)
    to = new.writeStream.format("iceberg")
    to = to.option("checkpointLocation", checkpoint)
    to.trigger(availableNow=True).toTable(into).awaitTermination()
