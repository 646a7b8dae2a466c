"""Is every order in the table, once? Judged by a reader that shares no code with the writer: pyiceberg.

And by the certificate, which knows nothing of what was produced: both must say so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from kafka_liveness_dagster.embedded.services import Services

TABLE = "shop.orders"


@dataclass
class Verdict:
    """What the demo found. ``lost`` counts orders missing or changed, ``duplicated`` rows there are too many.

    ``certificate`` is the sentence of ``kafka-liveness audit``.
    """

    produced: int
    in_table: int
    lost: int
    duplicated: int
    crash_lag: list[str] = field(default_factory=list)
    crash_lag_state: str = ""
    crash_lag_offsets: int = 0
    crash_to_fresh_seconds: float = 0.0
    in_order_seconds: float = 0.0
    killed_in_the_middle_of: str = ""
    seconds: float = 0.0
    certified: bool = False
    certificate: str = ""

    @property
    def holds(self) -> bool:
        """Nothing lost and nothing doubled, and certified so."""
        return self.lost == 0 and self.duplicated == 0 and self.certified

    def as_json(self) -> dict[str, Any]:
        """For ``--json-file FILE``."""
        return asdict(self)


def catalog_of(services: Services) -> Catalog:
    """The embedded services' catalog.

    That of a Spark of yours is what pyiceberg's own settings have by its name.
    """
    if not services.catalog_uri:
        return load_catalog(services.catalog_name)
    return SqlCatalog(services.catalog_name, uri=services.catalog_uri, warehouse=services.warehouse)


def read_table(services: Services) -> Counter[tuple[int, int, str]]:
    """Every (partition, offset, value) of the table and how often it is there."""
    rows = (
        catalog_of(services)
        .load_table(TABLE)
        .scan(selected_fields=("partition", "offset", "order_json"))
        .to_arrow()
    )
    columns = (rows.column(name).to_pylist() for name in ("partition", "offset", "order_json"))
    return Counter(zip(*columns, strict=True))


def compare(acknowledged: dict[tuple[int, int], str], in_table: Counter[tuple[int, int, str]]) -> Verdict:
    """Hold the table against what the feed knows the broker to have.

    >>> fed = {(3, 70): "tea", (3, 71): "mate"}
    >>> verdict = compare(fed, Counter({(3, 70, "tea"): 2}))
    >>> verdict.lost, verdict.duplicated
    (1, 1)
    """
    wanted = Counter((partition, offset, value) for (partition, offset), value in acknowledged.items())
    return Verdict(
        produced=wanted.total(),
        in_table=in_table.total(),
        lost=(wanted - in_table).total(),
        duplicated=(in_table - wanted).total(),
    )
