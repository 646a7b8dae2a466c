import json
import subprocess

from pyiceberg.catalog.sql import SqlCatalog

command = ["kafka-liveness", "up", "--json"]
up = json.loads(subprocess.check_output(command))
lake = SqlCatalog(up["catalog_name"], uri=up["catalog_uri"],
                  warehouse=up["warehouse"])
# Also: .to_pandas(), .to_duckdb("orders"), …
orders = lake.load_table("shop.orders").scan().to_arrow()
first = orders.slice(0, 3).to_pylist()
print(f"{orders.num_rows:,} rows, among them", first)
