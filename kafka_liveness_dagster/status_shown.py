"""How does the status of a group look in a terminal? Once, or again and again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kafka_liveness_dagster.core.commit_log import Mark
from kafka_liveness_dagster.core.membership import Expiry
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafka_liveness_dagster.status import GroupStatus, PartitionStatus

_SHOWN_RANGES = 6
_WARNING = {Expiry.NEAR: "about to expire", Expiry.BEGUN: "partly expired", Expiry.GONE: "expired"}


def show(found: GroupStatus) -> Group:
    """The same for a terminal."""
    numbers = found.as_json()
    told = f"lag {numbers['lag']:,}, {numbers['owed_offsets']:,} offsets owed, members: {len(found.members)}"
    title = Text(f"group {found.group_id}: {told}", "bold")
    warnings = [
        Text(f"{p.seen.topic_partition}: not this package's metadata: {p.foreign[:80]!r}", "yellow")
        for p in found.partitions
        if p.foreign is not None
    ]
    return Group(title, _partitions_table(found), *warnings, *([_members_table(found)] if found.members else []))


def watch(look: Callable[[], GroupStatus], seconds: float) -> None:
    """Look again and again until Ctrl-C; a broker that is away for a while is waited for."""
    with Live(show(look()), console=Console(highlight=False), auto_refresh=False) as live:
        live.refresh()
        while True:
            time.sleep(seconds)
            try:
                live.update(show(look()), refresh=True)
            except BrokerUnreachableError as error:
                live.update(Text(str(error), "red"), refresh=True)


def _partitions_table(found: GroupStatus) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("partition", "log", "committed", "mark", "lag", "owed", "done above", "both lanes"):
        table.add_column(column, overflow="fold", no_wrap=column not in ("partition", "owed", "done above"))
    for p in found.partitions:
        seen, mark = p.seen, p.seen.mark
        table.add_row(
            str(seen.topic_partition),
            f"{seen.log_start}-{seen.log_end}",
            _or_none(seen.committed),
            f"{mark.mark.value} {mark.run}" if mark else ("none" if p.foreign is None else "foreign"),
            f"{seen.lag:,}",
            _owed(p),
            _several([str(s) for s in p.second.done]),
            _or_none(p.committed),
            style="dim" if mark and mark.mark is Mark.PAUSED else "",
        )
    return table


def _members_table(found: GroupStatus) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("member", "run", "host", "static id", "partitions"):
        table.add_column(column, overflow="fold")
    for m in found.members:
        held = _several(sorted(map(str, m.seen.partitions)))
        runs = " ".join(m.runs) or "not ours"
        table.add_row(m.seen.client_id, runs, m.seen.host, m.seen.group_instance_id or "", held)
    return table


def _owed(p: PartitionStatus) -> Text:
    warnings = [_WARNING.get(p.expiry(span), "") for span in p.seen.outstanding]
    told = [f"{span} {warning}".rstrip() for span, warning in zip(p.seen.outstanding, warnings, strict=True)]
    return Text(_several(told), "red" if any(warnings) else "")


def _several(told: list[str]) -> str:
    rest = len(told) - _SHOWN_RANGES
    return ", ".join(told[:_SHOWN_RANGES]) + (f" and {rest} more" if rest > 0 else "")


def _or_none(offset: int | None) -> str:
    return "none" if offset is None else str(offset)
