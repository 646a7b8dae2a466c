"""Defects planted into a table from outside, to show that the checker finds them.

It alters one row by pyiceberg. It knows the columns topic, partition and offset, and nothing else of the
table.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import And, EqualTo

from tests.history.events import HistoryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.table import Table

PLANTS = ("loss", "duplicate")
_ATTEMPTS = 5


def plant(which: str, load_table: Callable[[], Table]) -> tuple[str, int, int]:
    """Delete a row, or append it once more; return its topic, partition and offset.

    Args:
        which: ``loss`` or ``duplicate``.
        load_table: returns the table; called again when another writer committed first.

    Raises:
        HistoryError: the table has no row.
        CommitFailedException: other writers committed first, each time.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        table = load_table()
        rows = table.scan().to_arrow()
        if rows.num_rows == 0:
            raise HistoryError(f"table {'.'.join(table.name())} has no row to plant a {which} at")
        row = rows.slice(rows.num_rows // 2, 1)
        key = tuple(row.column(name)[0].as_py() for name in ("topic", "partition", "offset"))
        try:
            if which == "loss":
                topic, partition, offset = key
                table.delete(
                    And(
                        EqualTo("topic", topic),
                        And(EqualTo("partition", partition), EqualTo("offset", offset)),
                    )
                )
            else:
                table.append(row)
        except CommitFailedException:
            if attempt == _ATTEMPTS:
                raise
            time.sleep(attempt)
        else:
            return key
    raise AssertionError("unreachable")
