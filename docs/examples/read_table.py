import json
import subprocess

from pyiceberg.catalog.sql import SqlCatalog

up = json.loads(subprocess.check_output(["kafka-liveness", "up", "--json"]))
lake = SqlCatalog(up["catalog_name"], uri=up["catalog_uri"], warehouse=up["warehouse"])
orders = lake.load_table("shop.orders").scan().to_arrow()          # or .to_pandas(), .to_duckdb("orders"), …
print(f"{orders.num_rows:,} rows, among them", orders.slice(0, 3).to_pylist())
