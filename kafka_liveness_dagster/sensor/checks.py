"""Define the asset checks of a Kafka asset: those of its group and its dead letters.

``core.health`` decides their results. The sensor reports them without a run, together with its observations.
A run of the checks job reads the group by itself. Never changes the group or the table.
"""

# No `from __future__ import annotations` here: Dagster compares the annotation of a check's context with the
# class.

import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from kafka_liveness_dagster.core import health
from kafka_liveness_dagster.core.bad_records import PendingDeadLetters
from kafka_liveness_dagster.core.freshness import (
    NO_SERVICE_LEVEL,
    Position,
    ServiceLevel,
    judge_freshness,
)
from kafka_liveness_dagster.core.health import OpenTransaction, Severity, Verdict, with_open_transactions
from kafka_liveness_dagster.core.partition_keys import is_key, new_keys
from kafka_liveness_dagster.core.run_ids import short_run_id
from kafka_liveness_dagster.runs.storage import storage_errors
from kafka_liveness_dagster.sensor.asset_events import jumped_partitions
from kafka_liveness_dagster.sensor.observation import GroupObservation
from kafka_liveness_dagster.sensor.record_timestamps import RecordTimestamps
from kafka_liveness_dagster.sensor.table_ledger import TableLedgerReader

if TYPE_CHECKING:
    from kafka_liveness_dagster.kafka.admin import Cluster

GROUP_ALIVE = "group_alive"
LAG = "lag"
RETENTION = "retention"
EXACT = "no_missing_rows"
CRASH_LAG_AGE = "crash_lag_age"
DEAD_LETTERS = "dead_letters"
FRESHNESS = "freshness_sla"
_MAX_KEYS = 1_000  # keys in one query of Dagster's storage
_MAX_OBSERVATIONS = 100  # events of the crash lag asset that are searched
_REPEAT_SECONDS = 600.0
_FACTS_SECONDS = 60.0  # between two results of a check with the same outcome and other facts
_MOVING = re.compile(r"(?<=\blag )\d[\d,]*|\d[\d,]*(?:\.\d+)?(?= s\b)")
REEVALUATE_AFTER_SECONDS = 20.0  # if runs end one after another; after a pause the first one counts at once
_TIMESTAMP_TOLERANCE_SECONDS = 1.5  # SQLite stores whole seconds
# A run may wait, a tick of the sensor may not: on a busy machine 3 s gave false alarms
_CONNECT_SECONDS = 10.0
_PLOTTED = {
    "lag",
    "pending_offsets",
    "oldest_seconds",
    "missing_offsets",
    "offsets_about_to_expire",
    "dead_letters",
    "seconds_behind",
    "pending_age_seconds",
}
"""Numbers with a course in time; a plot of the others is a line at 0 or at a setting."""
_DESCRIPTIONS = {
    GROUP_ALIVE: (
        "Fails if records wait and no member of the group reads them. Warns if a run hangs or has left, or "
        "if the last live run failed."
    ),
    LAG: (
        "Warns if the live lane has more than max_lag offsets to read, or if offsets are behind a "
        "transaction that hangs."
    ),
    RETENTION: (
        "Fails if the broker deleted unread or pending records. Warns if some are in the oldest tenth of a "
        "log that retention has begun to delete."
    ),
    EXACT: (
        "Fails if a committed offset is neither in the table, nor pending as crash lag, nor reported as "
        "lost. Compares the group's commits with the table's snapshots."
    ),
    CRASH_LAG_AGE: (
        "Warns if Dagster has known the oldest pending range for longer than max_age_seconds of CrashLag."
    ),
    DEAD_LETTERS: "Warns if dead letters are pending: records that the transform could not process.",
    FRESHNESS: (
        "Fails if the oldest unread record, or the oldest record that is not in the table, is older than a "
        "limit of sla."
    ),
}


@dataclass(frozen=True, kw_only=True)
class GroupChecks:
    """The checks of one group: on the live asset, and the age of pending ranges on the crash lag asset."""

    group_id: str
    topics: tuple[str, ...]
    live: dg.AssetKey
    crash_lag: dg.AssetKey
    partitions_name: str
    max_lag: int | None
    max_crash_lag_age_seconds: float | None
    max_poll_records: int
    max_live_runs: int
    ghost_after_seconds: float
    table: str | None = None
    has_dead_letters: bool = False
    _: KW_ONLY
    sla: ServiceLevel = NO_SERVICE_LEVEL
    _timestamps: RecordTimestamps = field(default_factory=RecordTimestamps, compare=False)

    @property
    def specs(self) -> list[dg.AssetCheckSpec]:
        """Return the specs that Dagster shows before the first evaluation.

        A custom sink has no check of its rows, because they cannot be read.
        """
        return [
            dg.AssetCheckSpec(name, asset=self._asset_of(name), description=what)
            for name, what in _DESCRIPTIONS.items()
            if (name != EXACT or self.table is not None)
            and (name != DEAD_LETTERS or self.has_dead_letters)
            and (name != FRESHNESS or self.sla.is_set)
        ]

    def definition(
        self, name: str, kafka_resource_key: str, spark_resource_key: str
    ) -> dg.AssetChecksDefinition:
        """Return all checks as one op, which reads the group once; any of them may be selected."""

        @dg.multi_asset_check(
            name=name,
            specs=self.specs,
            can_subset=True,
            required_resource_keys={kafka_resource_key, *([spark_resource_key] if self.table else [])},
            description=f"Checks consumer group {self.group_id} as the sensor does; changes nothing.",
        )
        def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
            cluster = getattr(context.resources, kafka_resource_key).cluster()
            table = TableLedgerReader.from_resources(
                self.table, context.resources, spark_resource_key, connect_seconds=_CONNECT_SECONDS
            )
            with storage_errors("a run of checks writes and commits none, and no check was evaluated"):
                judged = self._evaluate_now(cluster, context.instance, table)
            for evaluated in judged:
                if (
                    dg.AssetCheckKey(evaluated.asset_key, evaluated.check_name)
                    in context.selected_asset_check_keys
                ):
                    yield dg.AssetCheckResult(
                        passed=evaluated.passed,
                        asset_key=evaluated.asset_key,
                        check_name=evaluated.check_name,
                        metadata=evaluated.metadata,
                        severity=evaluated.severity,
                        description=evaluated.description,
                    )

        return checks

    def _evaluate_now(
        self, cluster: "Cluster", instance: dg.DagsterInstance, table: TableLedgerReader | None
    ) -> list[dg.AssetCheckEvaluation]:
        # Dagster first, as in the sensor: else a range that is materialized in between seems to lack a key
        existing = instance.get_dynamic_partitions(self.partitions_name)
        materialized = instance.get_materialized_partitions(self.crash_lag)
        recent_runs = 3 * self.max_live_runs
        look = GroupObservation.read(
            cluster, instance, self.group_id, self.topics, recent_runs=recent_runs, ledger=table
        )
        waiting = [key for key in existing if is_key(key) and key not in materialized]
        unlisted = new_keys(look.pending, existing, materialized)
        held = look.open_transactions(cluster, self.group_id)
        now = time.time()
        return self.evaluate(
            look,
            instance,
            waiting,
            now=now,
            ranges_without_key=unlisted,
            table=table,
            open_transactions=held,
            timestamps_ms=self.read_timestamps(cluster, look),
        )

    def read_timestamps(self, cluster: "Cluster", observed: GroupObservation) -> Mapping[Position, int]:
        """Return the timestamps for ``evaluate``; each one is read from Kafka once. None without limits."""
        if not self.sla.is_set:
            return {}
        return self._timestamps.read(cluster, self.group_id, observed.snapshot.partitions)

    def has_freshness_changed(self, observed: GroupObservation, outcomes: str, now: float) -> bool:
        """Return whether the freshness differs from the stored outcome, by the timestamps read so far.

        Sends no request. So a tick reports a missed limit before the next regular evaluation.
        """
        if not self.sla.is_set or not outcomes:
            return False
        seen = observed.snapshot.partitions
        verdict = judge_freshness(seen, self._timestamps.known(seen), self.sla, 1000 * now)
        return verdict.severity is not Severity.WARNING and _was_fresh(outcomes) is not (
            verdict.severity is Severity.FINE
        )

    def are_results_outdated(self, instance: dg.DagsterInstance, outcomes: str) -> bool:
        """Return whether Dagster shows another outcome than the cursor.

        A run of the checks job has stored one, or has failed; or a failed tick has stored the freshness. A
        run in progress stores its results soon, so it does not count.
        """
        if not outcomes:
            return False
        keys = {
            dg.AssetCheckKey(self._asset_of(name), name): outcome
            for outcome in outcomes.split(", ")
            for name in [outcome.partition(" ")[0]]
        }
        records = instance.event_log_storage.get_latest_asset_check_execution_by_key([*keys])
        return any(_is_outdated(instance, records.get(key), outcome) for key, outcome in keys.items())

    def report_unknown_freshness(self, instance: dg.DagsterInstance, error: Exception) -> None:
        """Store that the freshness is unknown, once, because a tick that fails evaluates no check.

        Else the last result, perhaps a passed one, would stay for as long as no broker responds.
        """
        if self.sla.is_set and self._is_stored_fresh(instance):
            reason = f"unknown: {str(error).partition(chr(10))[0] or type(error).__name__}"
            verdict = Verdict(Severity.WARNING, reason)
            instance.report_runless_asset_event(self._evaluation(FRESHNESS, verdict, None))

    def _is_stored_fresh(self, instance: dg.DagsterInstance) -> bool | None:
        """Return whether the last stored freshness passed; None if none is stored."""
        key = dg.AssetCheckKey(self._asset_of(FRESHNESS), FRESHNESS)
        for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=1):
            event = record.event.dagster_event if record.event else None
            if event is not None and event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                return event.asset_check_evaluation_data.passed
        return None

    def latest_storage_id(
        self,
        instance: dg.DagsterInstance,
        now: float,
        known: Mapping[dg.AssetKey, dg.EventLogRecord] | None = None,
    ) -> int:
        """Return the storage id of the last materialization of either asset; 0 before the first.

        After a new materialization Dagster ignores earlier checks. One of this very second is left to the
        next tick, because checks stored in the same second may count as older.

        Args:
            instance: Dagster instance, with the materializations.
            now: current time in seconds since the epoch.
            known: last materializations, if the caller has just read them.
        """
        both = (self.live, self.crash_lag)
        if known is None:
            found = [one for asset in both for one in instance.fetch_materializations(asset, limit=1).records]
        else:
            found = [known[asset] for asset in both if asset in known]
        return max(
            (one.storage_id for one in found if one.timestamp < now - _TIMESTAMP_TOLERANCE_SECONDS), default=0
        )

    def evaluate(
        self,
        observed: GroupObservation,
        instance: dg.DagsterInstance,
        pending: Sequence[str],
        now: float,
        *,
        ranges_without_key: Sequence[str] = (),
        requested: bool = False,
        forgotten: Sequence[str] = (),
        table: TableLedgerReader | None = None,
        open_transactions: Sequence[OpenTransaction] = (),
        timestamps_ms: Mapping[Position, int] | None = None,
    ) -> list[dg.AssetCheckEvaluation]:
        """Evaluate all checks for one observation of the group.

        Args:
            observed: the group now.
            instance: Dagster instance, which has the time since when a range is pending.
            pending: crash lag partitions that are not materialized.
            now: current time in seconds since the epoch.
            ranges_without_key: pending ranges without a partition.
            requested: whether a live run is requested by this tick.
            forgotten: forgotten ranges that are not done yet.
            table: table that was read with the group; it is also queried for dead letters.
            open_transactions: offsets behind open transactions.
            timestamps_ms: timestamps of the oldest records that are not in the table, see
                ``read_timestamps``.
        """
        seen = observed.snapshot
        ages = {
            short_run_id(record.dagster_run.run_id): now - _started_at(record) for record in observed.records
        }
        found = self._oldest_observed_at(observed, instance, pending)
        verdicts = {
            GROUP_ALIVE: health.group_alive(seen, ages, self.ghost_after_seconds, requested=requested),
            LAG: with_open_transactions(health.lag_below(seen.partitions, self.max_lag), open_transactions),
            RETENTION: health.retention(seen.partitions, self.max_poll_records),
            CRASH_LAG_AGE: health.crash_lag_age(
                seen.partitions,
                max(0.0, now - (found or now)),
                ranges_without_key,
                max_age_seconds=self.max_crash_lag_age_seconds,
            ),
        }
        if self.table is not None:
            verdicts[EXACT] = health.no_missing_rows(
                seen, forgotten, table.unavailable_reason if table else ""
            )
        if self.has_dead_letters:
            letters = table.dead_letters(observed.pending) if table else PendingDeadLetters()
            verdicts[DEAD_LETTERS] = health.dead_letters_waiting(
                letters, table.unavailable_reason if table and observed.pending else ""
            )
        if self.sla.is_set:
            verdicts[FRESHNESS] = judge_freshness(seen.partitions, timestamps_ms or {}, self.sla, 1000 * now)
        return [self._evaluation(name, verdict, observed) for name, verdict in verdicts.items()]

    def _oldest_observed_at(
        self, look: GroupObservation, instance: dg.DagsterInstance, waiting: Sequence[str]
    ) -> float | None:
        """Return when the oldest pending partition was first observed: the sensor observes added ones."""
        pending = look.still_pending(waiting)
        if not pending:
            return None
        alone = dg.AssetRecordsFilter(asset_key=self.crash_lag, asset_partitions=pending[:_MAX_KEYS])
        found = [one.timestamp for one in instance.fetch_observations(alone, limit=1, ascending=True).records]
        newest = instance.fetch_observations(self.crash_lag, limit=_MAX_OBSERVATIONS).records
        of_these = [
            one.timestamp
            for one in newest
            if not jumped_partitions(one.asset_observation).isdisjoint(pending)
        ]
        if not of_these and not found and len(newest) == _MAX_OBSERVATIONS:
            of_these = [newest[-1].timestamp]  # the observation is older than all of these
        return min((*found, *of_these), default=None)

    def _evaluation(
        self, name: str, verdict: Verdict, look: GroupObservation | None
    ) -> dg.AssetCheckEvaluation:
        last = (
            {"last_live_run": dg.MetadataValue.dagster_run(look.records[0].dagster_run.run_id)}
            if look is not None and look.records
            else {}
        )
        return dg.AssetCheckEvaluation(
            asset_key=self._asset_of(name),
            check_name=name,
            passed=verdict.severity is Severity.FINE,
            severity=dg.AssetCheckSeverity.ERROR
            if verdict.severity is Severity.ERROR
            else dg.AssetCheckSeverity.WARN,
            description=verdict.message,
            metadata={
                "group": self.group_id,
                **{name: _shown(name, number) for name, number in verdict.numbers.items()},
                **(last if name == GROUP_ALIVE else {}),
            },
        )

    def _asset_of(self, name: str) -> dg.AssetKey:
        return self.crash_lag if name == CRASH_LAG_AGE else self.live


def _is_outdated(instance: dg.DagsterInstance, record: Any, outcome: str) -> bool:
    """Return whether a record of Dagster has another outcome; an evaluation in progress has none yet."""
    event = record.event.dagster_event if record is not None and record.event else None
    if event is not None and event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
        return outcome_of(event.asset_check_evaluation_data) != outcome
    run = instance.get_run_by_id(record.run_id) if record is not None and record.run_id else None
    return run is None or run.is_finished


def _shown(name: str, number: float | str) -> int | float | str:
    """Return a number as it is if Dagster plots it, else as text."""
    return number if isinstance(number, str) or name in _PLOTTED else f"{number:,}"


def _started_at(record: dg.RunRecord) -> float:
    return record.start_time or record.create_timestamp.timestamp()


def _was_fresh(outcomes: str) -> bool:
    """Return whether the freshness passed in the outcomes of the cursor."""
    return f"{FRESHNESS} passed" in outcomes


def needs_reevaluation(newest: int, stored_of: int, stored_at: float, now: float) -> bool:
    """Return whether Dagster shows the checks as not evaluated, because of a newer materialization."""
    return newest > stored_of and now - stored_at >= REEVALUATE_AFTER_SECONDS


class StoredResults(NamedTuple):
    """The check results that were stored last.

    Attributes:
        outcomes: outcome of each check, such as ``lag passed, retention WARN``.
        stored_at: when all of them were stored, in seconds since the epoch.
        facts: the facts of each check's text, see ``facts_of``.
        facts_stored_at: when results were last stored for their facts, likewise.
    """

    outcomes: str = ""
    stored_at: float = 0.0
    facts: Mapping[str, str] = {}
    facts_stored_at: float = 0.0


def facts_of(evaluated: dg.AssetCheckEvaluation) -> str:
    """Return a hash of the facts that the text of a result states.

    Lag and times differ at each tick. In a passed result they do not count; else their power of two counts.
    """

    def scale(number: re.Match[str]) -> str:
        value = int(float(number[0].replace(",", "")))
        return "#" if evaluated.passed else f"#{value.bit_length()}"

    return f"{zlib.crc32(_MOVING.sub(scale, evaluated.description or '').encode()):08x}"


def outcome_of(evaluated: dg.AssetCheckEvaluation) -> str:
    """Return the outcome of a check as the cursor has it."""
    return f"{evaluated.check_name} {'passed' if evaluated.passed else evaluated.severity.value}"


def changed_evaluations(
    evaluated: Sequence[dg.AssetCheckEvaluation],
    stored: StoredResults,
    now: float,
    *,
    must_repeat: bool = False,
) -> tuple[Sequence[dg.AssetCheckEvaluation], StoredResults]:
    """Return the evaluations to store.

    These are all of them if an outcome has changed, and every ten minutes. Otherwise, at most once a minute,
    these are the results with other facts.

    Args:
        evaluated: all checks now.
        stored: results that were stored last.
        now: current time, on the clock of ``stored``.
        must_repeat: whether Dagster shows other results than the stored ones.

    Returns:
        The evaluations to store, and the new value of ``stored``.
    """
    outcomes = ", ".join(map(outcome_of, evaluated))
    facts = {e.check_name: facts_of(e) for e in evaluated}
    if must_repeat or outcomes != stored.outcomes or now - stored.stored_at >= _REPEAT_SECONDS:
        return evaluated, StoredResults(outcomes, now, facts, now)
    changed = [e for e in evaluated if facts[e.check_name] != stored.facts.get(e.check_name)]
    if not changed or now - stored.facts_stored_at < _FACTS_SECONDS:
        return (), stored
    return changed, stored._replace(facts=facts, facts_stored_at=now)
