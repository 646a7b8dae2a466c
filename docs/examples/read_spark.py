from pyspark.sql import SparkSession

def orders(spark_remote, table):
    """All rows, in the order of the topic."""
    spark = SparkSession.builder.remote(spark_remote).getOrCreate()
    return spark.table(table).orderBy("topic", "partition", "offset")
