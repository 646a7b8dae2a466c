"""Define all metrics in one table.

Reports, dashboards and documentation take all names from this module only. Names and labels are those of
OpenTelemetry's semantic conventions for messaging, where they have one. Other names begin with
``kafka_liveness.``.

>>> FENCES.name, FENCES.prometheus, LAG_TIME.prometheus
('kafka_liveness.fences', 'kafka_liveness_fences_total', 'kafka_liveness_lag_time_seconds')
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
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

BAD_RECORD = "bad-record"
SLOW_RECORD = "slow-record"
"""Reasons of quarantined offsets."""
COMMIT_CONFLICT = "commit-conflict"
COMMIT_STATE_UNKNOWN = "commit-state-unknown"
"""Reasons of retried table commits, in Iceberg's words."""


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: name in OpenTelemetry.
        instrument: kind of instrument.
        unit: unit in UCUM: ``s``, or a word in braces for a count of things.
        description: one or two sentences.
        labels: OpenTelemetry's attributes; ``PARTITION`` only if the user enables it.
        recorded_by: process that records it.
    """

    name: str
    instrument: Literal["counter", "gauge", "histogram"]
    unit: str
    _: KW_ONLY
    description: str
    labels: tuple[str, ...]
    recorded_by: Literal["runs", "sensor"]

    @property
    def prometheus(self) -> str:
        """Name in Prometheus; a histogram's series add ``_bucket``, ``_sum`` and ``_count``."""
        return (
            prometheus_name(self.name)
            + _UNITS.get(self.unit, "")
            + ("_total" if self.instrument == "counter" else "")
        )


_UNITS = {"s": "_seconds"}


def prometheus_name(name: str) -> str:
    """Return the Prometheus form of a name or a label."""
    return name.replace(".", "_")


_BROKER_LABELS = (SYSTEM, OPERATION, OPERATION_TYPE, GROUP, LANE)

PROCESS_DURATION = Metric(
    "messaging.process.duration",
    "histogram",
    "s",
    description=(
        "Seconds from the plan of a batch to its commit. From the commit of the batch before if that is "
        "later."
    ),
    labels=_BROKER_LABELS,
    recorded_by="runs",
)
CLIENT_DURATION = Metric(
    "messaging.client.operation.duration",
    "histogram",
    "s",
    description=(
        "Seconds of a request to the group's broker. `poll` reads the log ends and plans a batch; the wait "
        "for records is not included. `commit` commits the offsets of a batch."
    ),
    labels=_BROKER_LABELS,
    recorded_by="runs",
)
PHASE_DURATION = Metric(
    "kafka_liveness.batch.phase.duration",
    "histogram",
    "s",
    description="Seconds that a committed batch spent in a phase. `transform` reads the table's metadata and "
    "calls the transform. `write` is Spark's read, computation, write and table commit, retries included. "
    "`dead letters` finds the bad records and writes the others.",
    labels=(GROUP, LANE, PHASE),
    recorded_by="runs",
)
OFFSETS = Metric(
    "kafka_liveness.committed.offsets",
    "counter",
    "{offset}",
    description="Offsets that were processed and committed: an upper bound on records.",
    labels=(GROUP, TOPIC, LANE, PARTITION),
    recorded_by="runs",
)
ROWS = Metric(
    "kafka_liveness.written.rows",
    "counter",
    "{row}",
    description=(
        "Rows that committed batches wrote to the table or the sink. Absent if the sink does not count rows."
    ),
    labels=(GROUP, LANE),
    recorded_by="runs",
)
RETRIES = Metric(
    "kafka_liveness.write.retries",
    "counter",
    "{attempt}",
    description="Table commits of a batch that were retried: `commit-conflict` with another writer, or "
    "`commit-state-unknown` "
    "because the catalog did not respond.",
    labels=(GROUP, LANE, REASON),
    recorded_by="runs",
)
DEAD_LETTERS = Metric(
    "kafka_liveness.quarantined.offsets",
    "counter",
    "{offset}",
    description="Offsets that were quarantined and are pending: `bad-record` (the transform fails) or "
    "`slow-record` (it exceeds "
    "the run budget alone).",
    labels=(GROUP, TOPIC, REASON),
    recorded_by="runs",
)
FENCES = Metric(
    "kafka_liveness.fences",
    "counter",
    "{fence}",
    description="Fences of a run's consumer, by reason.",
    labels=(GROUP, LANE, REASON),
    recorded_by="runs",
)
THROTTLE_TIME = Metric(
    "kafka_liveness.throttle.time",
    "histogram",
    "s",
    description="Seconds by which a broker quota delayed a fetch of this login. Measured while a batch takes "
    "more than 20 s.",
    labels=(GROUP, LANE),
    recorded_by="runs",
)
LAG = Metric(
    "kafka_liveness.lag.offsets",
    "gauge",
    "{offset}",
    description="Offsets that the live lane has not read yet.",
    labels=(GROUP, TOPIC, PARTITION),
    recorded_by="sensor",
)
LAG_TIME = Metric(
    "kafka_liveness.lag.time",
    "gauge",
    "s",
    description=(
        "Seconds from the newest processed record to the newest record in the log, by their timestamps. "
        "Absent if unknown."
    ),
    labels=(GROUP, TOPIC),
    recorded_by="sensor",
)
PENDING = Metric(
    "kafka_liveness.crash_lag.offsets",
    "gauge",
    "{offset}",
    description=(
        "Offsets of crash lag that are pending: the live lane skipped ahead and no lane has processed them."
    ),
    labels=(GROUP, TOPIC, PARTITION),
    recorded_by="sensor",
)
PENDING_AGE = Metric(
    "kafka_liveness.crash_lag.age",
    "gauge",
    "s",
    description=(
        "Seconds since the timestamp of the oldest pending record that the broker still has; 0 if none is "
        "pending."
    ),
    labels=(GROUP, TOPIC),
    recorded_by="sensor",
)
OPEN_TRANSACTION_OFFSETS = Metric(
    "kafka_liveness.open_transaction.offsets",
    "gauge",
    "{offset}",
    description=(
        "Offsets behind an open transaction. No read_committed consumer receives them, and lag does not "
        "count them."
    ),
    labels=(GROUP, TOPIC),
    recorded_by="sensor",
)
OPEN_TRANSACTION_AGE = Metric(
    "kafka_liveness.open_transaction.age",
    "gauge",
    "s",
    description=(
        "Seconds since the timestamp of the first record of the oldest open transaction; 0 if there is none."
    ),
    labels=(GROUP, TOPIC),
    recorded_by="sensor",
)
EXPIRED = Metric(
    "kafka_liveness.crash_lag.expired_offsets",
    "gauge",
    "{offset}",
    description="Pending offsets of crash lag that the broker has deleted.",
    labels=(GROUP, TOPIC, PARTITION),
    recorded_by="sensor",
)
MEMBERS = Metric(
    "kafka_liveness.group.members",
    "gauge",
    "{member}",
    description="Members of the live lane's group.",
    labels=(GROUP,),
    recorded_by="sensor",
)
EVENTS = Metric(
    "kafka_liveness.group.events",
    "counter",
    "{event}",
    description=(
        "Events of the group by name: `RebalanceCompleted`, `CrashLagFound`, …; `MemberLeft` with its "
        "reason. Rebalances between two sensor ticks count as one."
    ),
    labels=(GROUP, EVENT, REASON),
    recorded_by="sensor",
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
"""All metrics, in the order of the documentation."""
