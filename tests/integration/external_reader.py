"""What reads our tables and has nothing of ours: a program for the Python of ``readers.environment``.

It runs docs/examples as they stand there, and prints what each of them reads as one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path


def example(file):
    """One of docs/examples, as a module."""
    spec = spec_from_file_location(Path(file).stem, file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def told(found):
    """``[partition, offset, written by, microseconds]`` of each row of a pyarrow table or reader."""
    rows = found.to_pylist() if hasattr(found, "to_pylist") else found.read_all().to_pylist()
    placed = (row.get("placed_at") for row in rows)
    times = [at and round(at.timestamp() * 1_000_000) for at in placed]
    return [
        [row["partition"], row["offset"], row["written_by"], at] for row, at in zip(rows, times, strict=True)
    ]


def main(shown, tables, backfilled):
    """Read each table by every reader, and the first one as of before its backfill.

    Args:
        shown: the examples, by the names of their files.
        tables: ``namespace.name``.
        backfilled: topic, partition, start and end of a range that was crash lag.
    """
    import pyarrow as pa  # noqa: PLC0415 - pytest imports this module elsewhere, to look for doctests

    script = Path(shown["read_table"]).read_text(encoding="utf-8").replace("shop.orders", tables[0])
    first: dict[str, object] = {}
    exec(compile(script, shown["read_table"], "exec"), first)  # noqa: S102 - the docs'
    up, lake, first_rows = first["up"], first["lake"], first["orders"]
    names = ("read_polars", "read_duckdb", "read_spark", "time_travel")
    polars, duckdb, spark, time_travel = (example(shown[name]) for name in names)

    def by_polars(name, planner, **options):
        os.environ["POLARS_ICEBERG_PLANNER"] = planner
        return told(polars.orders(lake, name, **options).to_arrow())

    def readers(name):
        scan = lake.load_table(name).scan()
        in_memory = 'FROM orders ORDER BY topic, "partition", "offset"'
        return {
            "pyiceberg": sorted(told(first_rows if name == tables[0] else scan.to_arrow())),
            "pandas": sorted(told(pa.Table.from_pandas(scan.to_pandas()))),
            "polars": by_polars(name, "plugin"),
            "polars without its plugin": by_polars(name, "pyiceberg"),
            "from 45": by_polars(name, "plugin", since=45),
            "from 45 without its plugin": by_polars(name, "pyiceberg", since=45),
            "duckdb": told(duckdb.orders(lake, name).to_arrow_table()),
            "duckdb by pyiceberg": told(scan.to_duckdb("orders").sql(in_memory).to_arrow_table()),
            "spark": told(spark.orders(up["spark_remote"], f"{up['catalog_name']}.{name}").toArrow()),
        }

    read = {name: readers(name) for name in tables}
    of_ours, session = lake.load_table(tables[0]), spark.SparkSession.active()
    in_spark = f"{up['catalog_name']}.{tables[0]}"
    wrote = time_travel.writers(time_travel.in_pyiceberg(of_ours), *backfilled)
    since = wrote[0][1]
    as_of = polars.pl.scan_iceberg(of_ours, snapshot_id=since).collect().to_arrow()
    db = duckdb.duckdb.connect()
    db.load_extension("iceberg")
    scanned = db.sql(f"FROM iceberg_scan('{of_ours.metadata_location}', snapshot_from_id={since})")
    return {
        "ours": [
            name for name in ("kafka_liveness_dagster", "dagster", "confluent_kafka") if find_spec(name)
        ],
        "versions": {
            name: version(name)
            for name in ("pyspark-client", "pyiceberg", "polars", "polars_iceberg", "duckdb")
        },
        "read": read,
        "before": {
            "spark": sorted(told(time_travel.before_in_spark(session, in_spark, *backfilled).toArrow())),
            "pyiceberg": sorted(told(time_travel.before_in_pyiceberg(of_ours, *backfilled).to_arrow())),
            "polars": sorted(told(as_of)),
            "duckdb": sorted(told(scanned.to_arrow_table())),
        },
        "writers": {
            "spark": [
                list(one) for one in time_travel.writers(time_travel.in_spark(session, in_spark), *backfilled)
            ],
            "pyiceberg": [list(one) for one in wrote],
        },
        "appended since": sorted(
            told(of_ours.incremental_append_scan(from_snapshot_id_exclusive=since).to_arrow())
        ),
    }


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(main(**asked)))  # noqa: T201 - its answer
