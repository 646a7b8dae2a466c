import dagster as dg
import kafka_liveness_dagster as kl
import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType


@F.udf(StringType())       # row by row
def shouted(value):
    return value.decode().upper()


@F.pandas_udf(LongType())  # column by column, through Arrow
def letters(values: pd.Series) -> pd.Series:
    return values.str.len()


@kl.kafka_asset(topics=["orders"], group_id="orders-etl",
                table="lake.shop.orders")
def orders(batch):
    return batch.select("topic", "partition", "offset",
                        shouted("value").alias("order"),
                        letters("value").alias("size"))


defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
