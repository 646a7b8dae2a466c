import base64
import re
import zlib

def wrote(text, topic, partition):
    """The offsets of a partition in a `kafka-liveness.written`: [(70, 120)]."""
    if text.startswith("z:"):                    # a long one is compressed, and says 70+50 for 70-120
        text = zlib.decompress(base64.b64decode(text[2:])).decode()
    found = re.search(rf"(?:^| ){re.escape(topic)}/\S*(?: [^/ ]+)*? {partition}\??(?:@\d+)?:([\d,+-]*)", text)
    spans = re.findall(r"(\d+)([+-])(\d+)", found[1]) if found else []
    return [(int(a), int(b) + (int(a) if sign == "+" else 0)) for a, sign, b in spans]

def writers(snapshots, topic, partition, start, end):
    """Which snapshots wrote any of these offsets? Of (id, parent's id, wrote), in the order that they have."""
    return [one for one in snapshots if any(a < end and start < b for a, b in wrote(one[2] or "", topic, partition))]

def in_spark(spark, table):
    """The table's snapshots, the oldest first."""
    found = f"SELECT snapshot_id, parent_id, summary['kafka-liveness.written'] FROM {table}.snapshots"
    return spark.sql(f"{found} ORDER BY committed_at").collect()

def in_pyiceberg(table):
    """The table's snapshots, the oldest first."""
    return [(s.snapshot_id, s.parent_snapshot_id, s.summary["kafka-liveness.written"]) for s in table.snapshots()]

def before_in_spark(spark, table, *backfilled):
    """The table as it was before a range of crash lag was backfilled: "orders", 3, 70, 120."""
    _, before, _ = writers(in_spark(spark, table), *backfilled)[0]
    return spark.sql(f"SELECT * FROM {table} VERSION AS OF {before}")

def before_in_pyiceberg(table, *backfilled):
    """The same as a scan: .to_arrow(), .to_pandas(), .to_polars(), …"""
    _, before, _ = writers(in_pyiceberg(table), *backfilled)[0]
    return table.scan(snapshot_id=before)
