"""The IO manager of ``dagster-kafka``, in a venv of its own: its pins would replace our clients.

Run as a script by that venv's Python it loads a topic a few times and prints records and seconds of each
load.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "1.3.1"
_ENOUGH_SECONDS = 300


class Load(NamedTuple):
    """One call of ``load_input``."""

    records: int
    seconds: float


def loads(bootstrap_servers: str, topic: str, count: int) -> list[Load]:
    """What so many loads of one topic gave, one after the other in one process."""
    command = [str(_python()), __file__, bootstrap_servers, topic, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ENOUGH_SECONDS)
    if done.returncode:
        raise RuntimeError(f"dagster-kafka {VERSION} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return [Load(*load) for load in json.loads(done.stdout.splitlines()[-1])]


def _python() -> Path:
    """Of the venv, which is made on the first run (about a minute) and then stays."""
    from kafka_liveness_dagster.embedded.jars import jars_folder  # noqa: PLC0415 - unknown to the other venv

    folder = jars_folder().parent / "peers" / f"dagster-kafka-{VERSION}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if complete.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    uv = [sys.executable, "-m", "uv"]
    asked = [f"dagster-kafka=={VERSION}", f"dagster=={version('dagster')}"]
    for command in (
        [*uv, "venv", "--python", sys.executable, str(folder)],
        [*uv, "pip", "install", "--python", str(python), *asked],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            what = f"no venv for {asked[0]}: {' '.join(command[2:4])} failed; --no-peer leaves it out"
            raise RuntimeError(f"{what}\n{done.stderr[-2000:]}")
    complete.touch()
    return python


def _main(bootstrap_servers: str, topic: str, count: int) -> None:
    import dagster as dg  # noqa: PLC0415 - the other venv's
    from dagster_kafka import KafkaIOManager, KafkaResource  # type: ignore[import-not-found]  # noqa: PLC0415

    kafka = KafkaResource(bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest")
    reader = KafkaIOManager(
        kafka_resource=kafka,
        consumer_group_id=f"peer-{os.getpid()}",
        max_messages=1_000_000,
        enable_dlq=False,
    )
    told = []
    for _ in range(count):
        context = dg.build_input_context(asset_key=dg.AssetKey([topic]))
        began = time.perf_counter()
        records = len(reader.load_input(context))
        told.append((records, time.perf_counter() - began))
    sys.stdout.write(f"{json.dumps(told)}\n")


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
