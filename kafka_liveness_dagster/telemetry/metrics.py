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

BAD_RECORD, SLOW_RECORD = "bad-record", "slow-record"
"""Reasons of quarantined offsets."""
COMMIT_CONFLICT, COMMIT_STATE_UNKNOWN = "commit-conflict", "commit-state-unknown"
"""Reasons of retried table commits, in Iceberg's words."""


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: as OpenTelemetry has it.
        instrument: which kind it is.
        unit: in UCUM: ``s``; a word in braces counts things.
        description: one or two sentences.
        labels: OpenTelemetry's attributes; ``PARTITION`` is there only when it is asked for.
        recorded_by: who tells it.
    """

    name: str
    instrument: Literal["counter", "gauge", "histogram"]
    unit: str
    description: str
    labels: tuple[str, ...]
    recorded_by: Literal["runs", "sensor"]

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus; a histogram's series add ``_bucket``, ``_sum`` and ``_count``."""
        return (
            prometheus_name(self.name) + _UNITS.get(self.unit, "") + ("_total" if self.instrument == "counter" else "")
        )


_UNITS = {"s": "_seconds"}


def prometheus_name(name: str) -> str:
    """A name, or a label, as Prometheus has it."""
    return name.replace(".", "_")


_BROKER_LABELS = (SYSTEM, OPERATION, OPERATION_TYPE, GROUP, LANE)

PROCESS_DURATION = Metric(
    "messaging.process.duration",
    "histogram",
    "s",
    "Seconds from the plan of a batch to its commit. From the commit of the batch before if that is later.",
    _BROKER_LABELS,
    "runs",
)
CLIENT_DURATION = Metric(
    "messaging.client.operation.duration",
    "histogram",
    "s",
    "Seconds of a request to the group's broker. `poll` reads the log ends and plans a batch; the wait for records is "
    "not included. `commit` commits the offsets of a batch.",
    _BROKER_LABELS,
    "runs",
)
PHASE_DURATION = Metric(
    "kafka_liveness.batch.phase.duration",
    "histogram",
    "s",
    "Seconds that a committed batch spent in a phase. `transform` reads the table's metadata and calls the transform. "
    "`write` is Spark's read, computation, write and table commit, retries included. `dead letters` finds the bad "
    "records and writes the others.",
    (GROUP, LANE, PHASE),
    "runs",
)
OFFSETS = Metric(
    "kafka_liveness.committed.offsets",
    "counter",
    "{offset}",
    "Offsets that were processed and committed: an upper bound on records.",
    (GROUP, TOPIC, LANE, PARTITION),
    "runs",
)
ROWS = Metric(
    "kafka_liveness.written.rows",
    "counter",
    "{row}",
    "Rows that committed batches wrote to the table or the sink. Absent if the sink does not count rows.",
    (GROUP, LANE),
    "runs",
)
RETRIES = Metric(
    "kafka_liveness.write.retries",
    "counter",
    "{attempt}",
    "Table commits of a batch that were retried: `commit-conflict` with another writer, or `commit-state-unknown` "
    "because the catalog did not respond.",
    (GROUP, LANE, REASON),
    "runs",
)
DEAD_LETTERS = Metric(
    "kafka_liveness.quarantined.offsets",
    "counter",
    "{offset}",
    "Offsets that were quarantined and are pending: `bad-record` (the transform fails) or `slow-record` (it exceeds "
    "the run budget alone).",
    (GROUP, TOPIC, REASON),
    "runs",
)
FENCES = Metric(
    "kafka_liveness.fences",
    "counter",
    "{fence}",
    "Fences of a run's consumer, by reason.",
    (GROUP, LANE, REASON),
    "runs",
)
THROTTLE_TIME = Metric(
    "kafka_liveness.throttle.time",
    "histogram",
    "s",
    "Seconds by which a broker quota delayed a fetch of this login. Measured while a batch takes more than 20 s.",
    (GROUP, LANE),
    "runs",
)
LAG = Metric(
    "kafka_liveness.lag.offsets",
    "gauge",
    "{offset}",
    "Offsets that the live lane has not read yet.",
    (GROUP, TOPIC, PARTITION),
    "sensor",
)
LAG_TIME = Metric(
    "kafka_liveness.lag.time",
    "gauge",
    "s",
    "Seconds from the newest processed record to the newest record in the log, by their timestamps. Absent if unknown.",
    (GROUP, TOPIC),
    "sensor",
)
PENDING = Metric(
    "kafka_liveness.crash_lag.offsets",
    "gauge",
    "{offset}",
    "Offsets of crash lag that are pending: the live lane skipped ahead and no lane has processed them.",
    (GROUP, TOPIC, PARTITION),
    "sensor",
)
PENDING_AGE = Metric(
    "kafka_liveness.crash_lag.age",
    "gauge",
    "s",
    "Seconds since the timestamp of the oldest pending record that the broker still has; 0 if none is pending.",
    (GROUP, TOPIC),
    "sensor",
)
OPEN_TRANSACTION_OFFSETS = Metric(
    "kafka_liveness.open_transaction.offsets",
    "gauge",
    "{offset}",
    "Offsets behind an open transaction. No read_committed consumer receives them, and lag does not count them.",
    (GROUP, TOPIC),
    "sensor",
)
OPEN_TRANSACTION_AGE = Metric(
    "kafka_liveness.open_transaction.age",
    "gauge",
    "s",
    "Seconds since the timestamp of the first record of the oldest open transaction; 0 if there is none.",
    (GROUP, TOPIC),
    "sensor",
)
EXPIRED = Metric(
    "kafka_liveness.crash_lag.expired_offsets",
    "gauge",
    "{offset}",
    "Pending offsets of crash lag that the broker has deleted.",
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
    "Events of the group by name: `RebalanceCompleted`, `CrashLagFound`, …; `MemberLeft` with its reason. Rebalances "
    "between two sensor ticks count as one.",
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
    PENDING,
    PENDING_AGE,
    EXPIRED,
    OPEN_TRANSACTION_OFFSETS,
    OPEN_TRANSACTION_AGE,
    MEMBERS,
    EVENTS,
)
"""All of them, in the order of the documentation."""
