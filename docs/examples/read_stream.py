def copy(spark, table, into, checkpoint):
    """Append to a table what is new in another since the last time: by a schedule, say."""
    new = spark.readStream.format("iceberg").load(table)
    to = new.writeStream.format("iceberg").option("checkpointLocation", checkpoint)
    to.trigger(availableNow=True).toTable(into).awaitTermination()
