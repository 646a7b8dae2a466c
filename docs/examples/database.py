import sqlite3
from contextlib import closing

import dagster as dg
import kafka_liveness_dagster as kl

TABLES = """
CREATE TABLE IF NOT EXISTS orders (topic text, partition int, offset int, order_json text);
CREATE TABLE IF NOT EXISTS held (range text PRIMARY KEY);
"""

class DatabaseSink:
    """Tables of an SQL database, here SQLite's: one transaction replaces the rows, and says of which offsets."""

    def __init__(self, path):
        self.path = path

    def __call__(self, replacement):
        rows = replacement.rows.select("topic", "partition", "offset", "order_json").collect()   # computed by Spark
        with closing(sqlite3.connect(self.path)) as database:
            database.executescript(TABLES)
            with database:                    # a transaction: all of it, or nothing when something is raised
                database.execute(f"DELETE FROM orders WHERE {replacement.condition}")
                database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", rows)
                database.executemany("INSERT OR IGNORE INTO held VALUES (?)", [(str(r),) for r in replacement.ranges])
                replacement.raise_if_fenced()  # the last thing before others can see it
        return len(rows)

    def covered(self, ranges):
        with closing(sqlite3.connect(self.path)) as database:
            database.executescript(TABLES)
            return [kl.OffsetRange.parse(held) for (held,) in database.execute("SELECT range FROM held")]

@kl.kafka_asset(topics=["orders"], group_id="orders-database", sink=DatabaseSink("orders.db"))
def orders(batch):
    return batch.selectExpr("topic", "partition", "offset", "cast(value as string) AS order_json")

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(resources={
    "kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}))
