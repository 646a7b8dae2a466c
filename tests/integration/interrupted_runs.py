"""A code location for runs that are stopped, killed and canceled: an asset for every law and protocol.

The second batch of a busy run lasts until it may go on. Spark itself tells how far it is, and hears that it
may go on, through system properties of its JVM: what a test sees of the batch is what Spark does with it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

import kafka_liveness_dagster as kl
from tests.spark_addresses import spark_at
from tests.timeouts import be_patient, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

PROTOCOLS = ("classic", "consumer")
HEARTBEAT = 0.5  # seconds
FIRST, LAST = 200, 400  # where the first batch ends, and the second one
BUSY = "chaos/busy"  # tags a run whose second batch waits
GATES = "chaos/gates"  # tags a run whose transform waits for a file in this folder: "1", then "2"; or "all"
# Seconds: who is stopped while another run begins and ends is late for the group, not for its batch
IN_TIME = 600.0
_NAP_MS = 200  # an offset: 40 s of the second batch, unless it may go on


@dataclass(frozen=True)
class AssetVariant:
    """What a law's asset is like; a session longer than patience tells who leaves from who is thrown out."""

    name: str
    session: float
    enable_parallel_rebalance: bool = True
    start_method: str = "spawn"
    max_batch_seconds: float = IN_TIME
    group_instance_id: str | None = None
    writes: bool = True


SHORT, LONG = seconds(1.5), 60.0  # seconds; the broker takes no longer session of a KIP-848 group
FOR_GOOD = 900.0  # seconds, of a session that ends in no test
LAWS = [
    AssetVariant("stopped", SHORT, enable_parallel_rebalance=False),
    AssetVariant("overtaken", SHORT, enable_parallel_rebalance=False),
    AssetVariant("killed", LONG),
    AssetVariant("orphaned", LONG),
    AssetVariant("forked", LONG, start_method="forkserver"),
    AssetVariant("unborn", LONG),
    AssetVariant("canceled", LONG),
    AssetVariant(
        "watched", SHORT, enable_parallel_rebalance=False, max_batch_seconds=seconds(10), writes=False
    ),
    AssetVariant("killed_alone", SHORT, writes=False),
    AssetVariant("ended", LONG, writes=False),
    AssetVariant("followed", FOR_GOOD, enable_parallel_rebalance=False, max_batch_seconds=FOR_GOOD),
    AssetVariant("static", seconds(10), group_instance_id="orders-1", writes=False),
]


@dataclass(frozen=True)
class Case:
    """A law under one protocol, with a topic, a group and a table that nobody else uses."""

    law: AssetVariant
    protocol: str
    world: str

    @property
    def name(self) -> str:
        return f"{self.law.name}_{self.protocol}"

    @property
    def topic(self) -> str:
        return f"{self.world}-{self.name}"

    @property
    def group_id(self) -> str:
        return f"etl-{self.world}-{self.name}"

    @property
    def table(self) -> str:
        return f"lake.{self.world}.{self.name}"

    @property
    def steps_job(self) -> str:
        """The job whose step is a process of its own."""
        return f"{self.name}_steps"

    def kafka(self, bootstrap_servers: str) -> kl.KafkaLivenessResource:
        classic = {"session_timeout_seconds": self.law.session, "heartbeat_interval_seconds": HEARTBEAT}
        return kl.KafkaLivenessResource(
            bootstrap_servers=bootstrap_servers,
            group_protocol=self.protocol,
            **(classic if self.protocol == "classic" else {}),
        )

    def asset(self) -> kl.KafkaAsset:
        """A small first batch and one that waits; rows name the run that wrote them."""
        calls = count(1)

        @kl.kafka_asset(
            name=self.name,
            topics=[self.topic],
            group_id=self.group_id,
            table=self.table if self.law.writes else None,
            sink=None if self.law.writes else _nowhere,
            max_poll_records=FIRST,
            max_batch_seconds=self.law.max_batch_seconds,
            membership=kl.Membership(group_instance_id=self.law.group_instance_id),
            idle_seconds=0.5,
            enable_parallel_rebalance=self.law.enable_parallel_rebalance,
            resources=kl.ResourceKeys(kafka=f"kafka_{self.name}"),
        )
        def orders(batch):
            run = dg.AssetExecutionContext.get().run
            _wait_at_the_gate(run.tags.get(GATES), next(calls))
            waits = _waits(run.run_id) if BUSY in run.tags else "''"
            written_by = f"if({waits} = 'never', 'never', '{run.run_id}') AS written_by"
            return batch.selectExpr("topic", "partition", "offset", written_by)

        return orders


def cases(world: str) -> list[Case]:
    """Every law under every protocol."""
    return [Case(law, protocol, world) for law in LAWS for protocol in PROTOCOLS]


def offset_property(run_id: str) -> str:
    """Where Spark tells the offset at which a busy run is."""
    return f"{run_id}.offset"


def go_on_property(run_id: str) -> str:
    """Where a busy run is told to go on."""
    return f"{run_id}.goes_on"


def _nowhere(replacement: kl.Replacement) -> None:
    """A sink without Spark: a batch takes as long as its gate."""
    replacement.raise_if_fenced()


def _wait_at_the_gate(folder: str | None, call: int) -> None:
    """Code that no watchdog can interrupt: it goes on when a file is there, and not before."""
    while folder and not any((Path(folder) / gate).exists() for gate in (str(call), "all")):
        time.sleep(0.05)


def _waits(run_id: str) -> str:
    goes_on = f"java_method('java.lang.System', 'getProperty', '{go_on_property(run_id)}') = 'yes'"
    tell = (
        f"java_method('java.lang.System', 'setProperty', '{offset_property(run_id)}', cast(offset AS string))"
    )
    nap = f"java_method('java.lang.Thread', 'sleep', {_NAP_MS}L)"
    return f"CASE WHEN offset < {FIRST} OR {goes_on} THEN '' ELSE concat({tell}, {nap}) END"


def definitions(told: Iterable[Case], bootstrap_servers: str, remote: str) -> dg.Definitions:
    """The cases' assets, each with its own job and one whose step is a process of its own."""
    parts, steps, kafka = [], [], {}
    for case in told:
        asset = case.asset()
        parts.append(asset.definitions)
        executor = dg.multiprocess_executor.configured({"start_method": {case.law.start_method: {}}})
        steps.append(dg.define_asset_job(case.steps_job, selection=[asset.live.key], executor_def=executor))
        kafka[asset.settings.resources.kafka] = case.kafka(bootstrap_servers)
    resources = {**kafka, "spark": spark_at(remote)}
    return dg.Definitions.merge(*parts, dg.Definitions(jobs=steps, resources=resources))


@dg.definitions
def defs() -> dg.Definitions:
    """All cases of the world that the environment names."""
    be_patient()
    world, servers, remote = (os.environ[f"CHAOS_{name}"] for name in ("WORLD", "KAFKA", "SPARK"))
    return definitions(cases(world), servers, remote)
