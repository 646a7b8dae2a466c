import base64
import re
import zlib

WROTE = "kafka-liveness.written"

def wrote(text, topic, partition):
    """A partition's offsets in `kafka-liveness.written`: [(70, 120)].

    A long text is compressed, and has 70+50 for 70-120.
    """
    if text.startswith("z:"):
        text = zlib.decompress(base64.b64decode(text[2:])).decode()
    found = re.search(
        rf"(?:^| ){re.escape(topic)}/\S*(?: [^/ ]+)*? "
        rf"{partition}\??(?:@\d+)?:([\d,+-]*)", text)
    spans = []
    if found:
        spans = re.findall(r"(\d+)([+-])(\d+)", found[1])
    return [(int(a), int(b) + (int(a) if sign == "+" else 0))
            for a, sign, b in spans]

def writers(snapshots, topic, partition, start, end):
    """The snapshots that wrote any of these offsets, in order.

    Each snapshot is (id, parent's id, written).
    """
    return [one for one in snapshots
            if any(a < end and start < b for a, b
                   in wrote(one[2] or "", topic, partition))]

def in_spark(spark, table):
    """The table's snapshots, the oldest first."""
    return spark.sql(
        f"SELECT snapshot_id, parent_id, summary['{WROTE}'] "
        f"FROM {table}.snapshots ORDER BY committed_at").collect()

def in_pyiceberg(table):
    """The table's snapshots, the oldest first."""
    return [(s.snapshot_id, s.parent_snapshot_id, s.summary[WROTE])
            for s in table.snapshots()]

def before_in_spark(spark, table, *backfilled):
    """The table before a backfill of crash lag.

    The range is, for example, "orders", 3, 70, 120.
    """
    found = writers(in_spark(spark, table), *backfilled)
    _, before, _ = found[0]
    return spark.sql(
        f"SELECT * FROM {table} VERSION AS OF {before}")

def before_in_pyiceberg(table, *backfilled):
    """The same as a scan: .to_arrow(), .to_pandas(), …"""
    found = writers(in_pyiceberg(table), *backfilled)
    _, before, _ = found[0]
    return table.scan(snapshot_id=before)
