"""What does ``dg scaffold defs`` write for a Kafka asset? What loads as it is, on the embedded services."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import dagster as dg

if TYPE_CHECKING:
    from pathlib import Path

_YAML = """\
type: {type}

attributes:
  topics: [{topic}]
  group_id: {topic}-etl
  table: lake.shop.{name}  # Iceberg, catalog.namespace.table; lake is the embedded Spark's; the first batch creates it
  # The transform: a SELECT over the batch, or `transform: .module:function` from DataFrame to DataFrame.
  # A row keeps topic, partition and offset; an offset may give none, one or many rows.
  sql: |
    SELECT topic, partition, offset, CAST(value AS string) AS text
    FROM batch
  max_poll_records: 100000  # offsets in a batch, at most
  max_batch_seconds: 300  # a batch that takes longer is cancelled; it is retried at half its size, or becomes crash lag
  enable_parallel_rebalance: false  # true: after a crash be fresh at once; the skipped ranges become partitions
  sensor:
    default_status: STOPPED  # RUNNING: the sensor starts with the code location

  # Resources of the whole project: leave out what another component or a resources.py declares.
  kafka:
    bootstrap_servers: embedded  # a real broker on loopback; or "{{{{ env.KAFKA_BOOTSTRAP_SERVERS }}}}"
  spark:
    remote: embedded  # a real Spark Connect server on loopback; or "{{{{ env.SPARK_REMOTE }}}}"
"""


class KafkaAssetScaffolder(dg.Scaffolder[Any]):
    """Names topic, group and table after the folder."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write ``defs.yaml``, or add a document to the one there is."""
        if request.scaffold_format != "yaml":
            dg.scaffold_component(request)
            return
        folder = request.target_path.parent if request.append else request.target_path
        text = _YAML.format(type=request.type_name, topic=folder.name, name=name_of(folder))
        path = request.target_path if request.append else folder / "defs.yaml"
        before = f"{path.read_text(encoding='utf-8')}---\n" if request.append else ""
        path.write_text(before + text, encoding="utf-8")


def name_of(folder: Path) -> str:
    """The folder's name as Dagster takes it for an asset's.

    >>> from pathlib import Path
    >>> name_of(Path("defs/web-orders"))
    'web_orders'
    """
    return re.sub(r"\W", "_", folder.name, flags=re.ASCII)
