import sqlite3
from contextlib import closing

import dagster as dg
import kafka_liveness_dagster as kl

TABLES = """
CREATE TABLE IF NOT EXISTS orders (
  topic text, partition int, offset int, order_json text);
CREATE TABLE IF NOT EXISTS ledger (
  entry text, committed_at text, rows int);
"""
INSERT_ENTRY = "INSERT INTO ledger VALUES (?, datetime('now'), ?)"

class DatabaseSink:
    """Tables of an SQL database, here SQLite.

    One transaction replaces the rows and records their offsets.
    """

    def __init__(self, path):
        self.path = path

    def __call__(self, replacement):
        rows = replacement.rows.select(  # computed by Spark
            "topic", "partition", "offset", "order_json").collect()
        where = replacement.condition
        entry = replacement.ledger_text
        with closing(sqlite3.connect(self.path)) as database:
            database.executescript(TABLES)
            with database:  # a transaction; an error rolls it back
                database.execute(f"DELETE FROM orders WHERE {where}")
                database.executemany(
                    "INSERT INTO orders VALUES (?, ?, ?, ?)", rows)
                database.execute(INSERT_ENTRY, (entry, len(rows)))
                replacement.raise_if_fenced()  # last before the commit
        return len(rows)

    def ledger_commits(self):
        with closing(sqlite3.connect(self.path)) as database:
            database.executescript(TABLES)
            entries = database.execute(
                "SELECT entry, rowid, committed_at, rows FROM ledger")
            return [kl.SinkCommit(text, str(number), at, rows)
                    for text, number, at, rows in entries]

    def merge_ledger(self):
        """Merge all entries into one; run it from a schedule."""
        with closing(sqlite3.connect(self.path)) as database, database:
            entries = database.execute(
                "DELETE FROM ledger RETURNING entry, rows").fetchall()
            text = kl.merge_ledger_texts(text for text, _ in entries)
            total = sum(rows for _, rows in entries)
            database.execute(INSERT_ENTRY, (text, total))

@kl.kafka_asset(topics=["orders"], group_id="orders-database",
                sink=DatabaseSink("orders.db"))
def orders(batch):
    return batch.selectExpr("topic", "partition", "offset",
                            "cast(value as string) AS order_json")

defs = dg.Definitions.merge(orders.definitions, dg.Definitions(
    resources={"kafka": kl.KafkaLivenessResource(),
               "spark": kl.SparkConnectResource()}))
