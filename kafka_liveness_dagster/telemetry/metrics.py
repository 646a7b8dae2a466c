"""Which metrics are there? All of them, in one table: what is told, drawn or documented is named here and nowhere else.

Names and labels are those of OpenTelemetry's semantic conventions for messaging where they have one; the others begin
with ``kafka_liveness.``.

>>> FENCES.name, FENCES.prometheus, LAG_TIME.prometheus
('kafka_liveness.fences', 'kafka_liveness_fences_total', 'kafka_liveness_lag_time_seconds')
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GROUP = "messaging.consumer.group.name"
TOPIC = "messaging.destination.name"
PARTITION = "messaging.destination.partition.id"
SYSTEM = "messaging.system"
OPERATION = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
LANE = "kafka_liveness.lane"
PHASE = "kafka_liveness.phase"
REASON = "kafka_liveness.reason"
EVENT = "kafka_liveness.event"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: as OpenTelemetry has it.
        instrument: which kind it is.
        unit: in UCUM: ``s``; a word in braces counts things.
        description: one or two sentences.
        labels: OpenTelemetry's attributes; ``PARTITION`` is there only when it is asked for.
        told_by: who tells it.
    """

    name: str
    instrument: Literal["counter", "gauge", "histogram"]
    unit: str
    description: str
    labels: tuple[str, ...]
    told_by: Literal["runs", "sensor"]

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus; a histogram's series add ``_bucket``, ``_sum`` and ``_count``."""
        return prometheus(self.name) + _UNITS.get(self.unit, "") + ("_total" if self.instrument == "counter" else "")


_UNITS = {"s": "_seconds"}


def prometheus(name: str) -> str:
    """A name, or a label, as Prometheus has it."""
    return name.replace(".", "_")


_OF_BROKER = (SYSTEM, OPERATION, OPERATION_TYPE, GROUP, LANE)

PROCESS_DURATION = Metric(
    "messaging.process.duration",
    "histogram",
    "s",
    "Seconds of a batch to its commit: from its plan, or from the commit of the batch before where that was later.",
    _OF_BROKER,
    "runs",
)
CLIENT_DURATION = Metric(
    "messaging.client.operation.duration",
    "histogram",
    "s",
    "Seconds that the group's broker was at it: `poll` asks where the logs end and plans a batch, without the wait for "
    "records; `commit` commits a batch's offsets.",
    _OF_BROKER,
    "runs",
)
PHASE_DURATION = Metric(
    "kafka_liveness.batch.phase.duration",
    "histogram",
    "s",
    "Seconds of a committed batch between the two: `transform` looks at the table and calls the transform, `write` is "
    "Spark's: it reads, computes, writes and commits the table, later attempts included; `dead letters` finds those"
    " and writes the others.",
    (GROUP, LANE, PHASE),
    "runs",
)
OFFSETS = Metric(
    "kafka_liveness.committed.offsets",
    "counter",
    "{offset}",
    "Offsets that were processed and committed, an upper bound on records.",
    (GROUP, TOPIC, LANE, PARTITION),
    "runs",
)
ROWS = Metric(
    "kafka_liveness.written.rows",
    "counter",
    "{row}",
    "Rows that are in the table, or the sink, by batches that were committed; not there where a sink does not count.",
    (GROUP, LANE),
    "runs",
)
RETRIES = Metric(
    "kafka_liveness.write.retries",
    "counter",
    "{attempt}",
    "Attempts at a batch's table commit that were not the last word: `other writer` was there first, or `no answer` "
    "came from the catalog.",
    (GROUP, LANE, REASON),
    "runs",
)
DEAD_LETTERS = Metric(
    "kafka_liveness.dead_letters",
    "counter",
    "{record}",
    "Records that were set aside and are owed: one `fails alone`, or is `too slow alone`.",
    (GROUP, TOPIC, REASON),
    "runs",
)
FENCES = Metric(
    "kafka_liveness.fences",
    "counter",
    "{fence}",
    "Times that a run's consumer was fenced, by the code of its reason.",
    (GROUP, LANE, REASON),
    "runs",
)
THROTTLE_TIME = Metric(
    "kafka_liveness.throttle.time",
    "histogram",
    "s",
    "Seconds by which a quota of the broker delayed a fetch of this login, asked while a batch takes more than 20 s.",
    (GROUP, LANE),
    "runs",
)
LAG = Metric(
    "kafka_liveness.lag.offsets",
    "gauge",
    "{offset}",
    "Offsets that wait for the live lane.",
    (GROUP, TOPIC, PARTITION),
    "sensor",
)
LAG_TIME = Metric(
    "kafka_liveness.lag.time",
    "gauge",
    "s",
    "Seconds from the newest record that is processed to the newest in the log, by their own timestamps; not there "
    "where nobody can tell.",
    (GROUP, TOPIC),
    "sensor",
)
OWED = Metric(
    "kafka_liveness.owed.offsets",
    "gauge",
    "{offset}",
    "Offsets that the live lane jumped over and that are not done.",
    (GROUP, TOPIC, PARTITION),
    "sensor",
)
OWED_AGE = Metric(
    "kafka_liveness.owed.age",
    "gauge",
    "s",
    "Seconds since the timestamp of the oldest record that is owed and that the broker still has; 0 where none is.",
    (GROUP, TOPIC),
    "sensor",
)
HELD_BACK = Metric(
    "kafka_liveness.held_back.offsets",
    "gauge",
    "{offset}",
    "Offsets behind an open transaction, which nobody who reads committed gets and no lag counts.",
    (GROUP, TOPIC),
    "sensor",
)
HELD_BACK_AGE = Metric(
    "kafka_liveness.held_back.age",
    "gauge",
    "s",
    "Seconds since the timestamp of the first record of the oldest open transaction; 0 where nothing is behind one.",
    (GROUP, TOPIC),
    "sensor",
)
EXPIRED = Metric(
    "kafka_liveness.owed.expired_offsets",
    "gauge",
    "{offset}",
    "Owed offsets that the broker has deleted.",
    (GROUP, TOPIC, PARTITION),
    "sensor",
)
MEMBERS = Metric(
    "kafka_liveness.group.members",
    "gauge",
    "{member}",
    "Members of the live lane's group.",
    (GROUP,),
    "sensor",
)
EVENTS = Metric(
    "kafka_liveness.group.events",
    "counter",
    "{event}",
    "What the sensor saw happen to the group, by the event's name: `RebalanceCompleted`, `CrashLagFound`, …; with the "
    "reason's code for `MemberLeft`. Rebalances between two looks are one.",
    (GROUP, EVENT, REASON),
    "sensor",
)

METRICS = (
    PROCESS_DURATION,
    CLIENT_DURATION,
    PHASE_DURATION,
    OFFSETS,
    ROWS,
    RETRIES,
    DEAD_LETTERS,
    FENCES,
    THROTTLE_TIME,
    LAG,
    LAG_TIME,
    OWED,
    OWED_AGE,
    EXPIRED,
    HELD_BACK,
    HELD_BACK_AGE,
    MEMBERS,
    EVENTS,
)
"""All of them, in the order of the documentation."""
