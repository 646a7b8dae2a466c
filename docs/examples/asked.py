from datetime import timedelta

import dagster as dg
import kafka_liveness_dagster as kl
from pyspark.sql import functions as F

class Shop(dg.ConfigurableResource):
    country: str

TEN_MINUTES = timedelta(minutes=10)

@kl.kafka_asset(
    topics=["orders"], group_id="shop-etl", table="lake.shop.orders",
    key_prefix="shop", code_version="2",
    owners=["team:orders"], tags={"tier": "1"},
    retry_policy=dg.RetryPolicy(max_retries=2),
    freshness_policy=dg.FreshnessPolicy.time_window(
        fail_window=TEN_MINUTES))
def orders(context: dg.AssetExecutionContext, batch, shop: Shop):
    return batch.select("topic", "partition", "offset",
                        F.lit(shop.country).alias("country"),
                        F.lit(context.run.run_id).alias("written_by"))

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource(),
               "shop": Shop(country="NL")}))
