"""Fingerprints of simulated histories: a hash of the product's effects on the outside, in order, with time.

    python -m tests.simulation.fingerprints --check
    python -m tests.simulation.fingerprints --write
    python -m tests.simulation.fingerprints --show 17

A fingerprint covers joins and leaves of members, commits with their metadata, requested writes, snapshots
with their summaries, materialized partitions and the ends of runs. It covers no name of a module or a class,
no log text and no error text. A seed also decides which thread runs next, at each lock and each request. So a
change in the number of locks, requests or warnings changes fingerprints, too. ``--show`` prints the effects,
so that two versions can be compared with diff.
"""

from __future__ import annotations

import argparse
import base64
import multiprocessing
import re
import sys
import zlib
from concurrent.futures import ProcessPoolExecutor
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.simulation.histories import HISTORIES, seldom_collected
from tests.simulation.scheduler import clock
from tests.simulation.seams import simulated
from tests.simulation.world import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tests.simulation.client import MemberClient

FILE = Path(__file__).with_name("fingerprints.txt")
_BYTES = 4
_PROCESSES = 2
_PER_TASK = 100
_RANDOM = re.compile(r"\b[0-9a-f]{32}\b")
_COMPRESSED = "z:"


def known() -> list[str]:
    """Return the stored fingerprints: line ``n`` is that of seed ``n``, from 0."""
    return FILE.read_text(encoding="utf-8").split() if FILE.exists() else []


def fingerprints(seeds: Iterable[int]) -> list[str]:
    """Run these histories and return a fingerprint of each."""
    with simulated():
        return [_hash(_effects_of(seed)) for seed in seeds]


def effects(seed: int) -> list[str]:
    """Run one history and return its effects, a line each."""
    with simulated():
        return _effects_of(seed)


def differing(seeds: Sequence[int], found: Sequence[str]) -> str:
    """Return a message about the seeds whose fingerprints are not the stored ones.

    An empty text without any.
    """
    stored = known()
    others = [
        seed for seed, one in zip(seeds, found, strict=True) if seed >= len(stored) or stored[seed] != one
    ]
    if not others:
        return ""
    return (
        f"{len(others)} of {len(seeds)} histories have other effects than tests/simulation/fingerprints.txt "
        f"records: seeds {', '.join(map(str, others[:10]))}{', …' if len(others) > 10 else ''}. To see "
        f"them: python -m tests.simulation.fingerprints --show {others[0]}, here and in a checkout of the "
        "commit before, and diff. If the change is intended: python -m tests.simulation.fingerprints "
        "--write"
    )


def _hash(lines: Iterable[str]) -> str:
    return blake2b("\n".join(lines).encode(), digest_size=_BYTES).hexdigest()


def _effects_of(seed: int) -> list[str]:
    world = Simulation(seed)
    lines = _Recorder(world).lines
    world.run()
    for tp, p in world.partitions.items():
        lines.append(
            f"{tp} ends {p.log_start}-{p.log_end} first {p.live_commit} second {p.catch_up_commit} rows "
            f"{p.names(p.rows)}"
        )
    return lines


class _Recorder:
    """Notes each effect of a history: a simulated process reaches the outside in these ways alone."""

    def __init__(self, world: Simulation) -> None:
        self.lines: list[str] = []
        self._world = world
        group, broker, table = world.broker.group, world.broker, world.table
        self._before(group, "join", self._joins)
        self._before(group, "leave", self._leaves)
        self._after(broker, "commit_first", self._committed)
        self._before(broker, "commit_second", self._commits_to_catch_up_log)
        self._after(table, "begin", self._requested)
        self._after(table, "add", self._added)
        self._before(world, "materialize", lambda keys, _asked_at: self._note("materialized", *keys))
        self._before(world, "bury", lambda process: self._note("ended", process.name))

    @staticmethod
    def _before(where: Any, name: str, record: Callable[..., None]) -> None:
        original = getattr(where, name)

        def call(*args: Any) -> Any:
            record(*args)
            return original(*args)

        setattr(where, name, call)

    @staticmethod
    def _after(where: Any, name: str, record: Callable[..., None]) -> None:
        original = getattr(where, name)

        def call(*args: Any) -> Any:
            result = original(*args)
            record(result, *args)
            return result

        setattr(where, name, call)

    def _note(self, *words: object) -> None:
        self.lines.append(f"{clock.now - 1_000:.6f} {' '.join(map(str, words))}")

    def _joins(self, client: MemberClient) -> None:
        if client not in self._world.broker.group.members:
            self._note("joined", client.process.name, client.name, client.client_id)

    def _leaves(self, client: MemberClient) -> None:
        if client in self._world.broker.group.members:
            self._note("left", client.process.name, client.name)

    def _committed(self, refusal: int | None, client: MemberClient, offsets: Iterable[Any]) -> None:
        outcome = "done" if refusal is None else f"refused {refusal}"
        self._note("commit", client.process.name, client.name, _commits(offsets), outcome)

    def _commits_to_catch_up_log(self, offsets: Iterable[Any], process: Any) -> None:
        self._note("commit of the second log", process.name, _commits(offsets))

    def _requested(
        self, write: Any, author: str, ranges: Iterable[Any], told: Mapping[str, str], *_: object
    ) -> None:
        self._note("write", author, *ranges, _summary(told), "begun" if write else "refused")

    def _added(self, _: None, *told: Any) -> None:
        *sets, summary = told
        offsets = [
            [f"{tp} {self._world.partitions[tp].names(bits)}" for tp, bits in sorted(one.items())]
            for one in sets
        ]
        self._note("snapshot", self._world.table.current_id, *offsets, _summary(summary))


def _commits(offsets: Iterable[Any]) -> list[str]:
    return [f"{one.topic}:{one.partition} {one.offset} {one.metadata!r}" for one in offsets]


def _summary(summary: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={_plain(text)}" for name, text in summary.items())


def _plain(text: str) -> str:
    """Return a text without what differs between runs and machines: random names, and how zlib compresses."""
    if text.startswith(_COMPRESSED):
        text = zlib.decompress(base64.b64decode(text.removeprefix(_COMPRESSED))).decode()
    return _RANDOM.sub("random", text)


def _task(seeds: range) -> list[str]:
    with seldom_collected():
        return fingerprints(seeds)


def _in_processes(seeds: range) -> list[str]:
    tasks = [seeds[at : at + _PER_TASK] for at in range(0, len(seeds), _PER_TASK)]
    with ProcessPoolExecutor(_PROCESSES, multiprocessing.get_context("spawn")) as pool:
        return list(chain.from_iterable(pool.map(_task, tasks)))


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.fingerprints")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--check", action="store_true", help="compare with the stored fingerprints; 1 if any differs"
    )
    what.add_argument("--write", action="store_true", help="store the fingerprints")
    what.add_argument("--show", type=int, metavar="SEED", help="print the effects of one history")
    parser.add_argument(
        "--seeds", type=int, default=HISTORIES, help="how many, from 0 [default: %(default)s]"
    )
    given = parser.parse_args(words)
    if given.show is not None:
        print("\n".join(effects(given.show)))  # noqa: T201
        return 0
    seeds = range(given.seeds)
    found = _in_processes(seeds)
    if given.write:
        FILE.write_text("\n".join([*found, *known()[len(found) :]]) + "\n", encoding="utf-8")
        return 0
    message = differing(seeds, found)
    print(message or f"{len(seeds)} fingerprints are as stored")  # noqa: T201
    return 1 if message else 0


if __name__ == "__main__":
    sys.exit(main())
