"""Groups of settings that belong together: small objects with their own fields and defaults.

Each is written once, and here. ``kafka_asset``, the sections of the component's YAML,
``KafkaLivenessResource.consumer`` and ``build_group_sensor`` all take these same objects. A docstring below a
field is its description, also in the schema that editors read.
"""

# No `from __future__ import annotations` here: pydantic reads the annotations.

from collections.abc import Iterable
from copy import copy
from inspect import cleandoc
from typing import Any, Literal

import dagster as dg
import docstring_parser
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typing_extensions import Self

from kafka_liveness_dagster.core.freshness import ServiceLevel
from kafka_liveness_dagster.core.table_layout import BY_KAFKA_PARTITION
from kafka_liveness_dagster.settings import types
from kafka_liveness_dagster.settings.validation import ValidatedSettings


class SettingsGroup(ValidatedSettings, dg.Resolvable):
    """Settings that are declared as one object: each has a default, and may be left out.

    Raises:
        InvalidSettingError: with every setting that is wrong, its value, and what was wanted.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.title = cls.__name__

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.non_defaults().items())
        return f"kl.{type(self).__name__}({settings})"

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Dagster asks whether YAML may have it.

        The component's own section says what of it, and takes templates.
        """
        return BaseModel

    @classmethod
    def fields_with_descriptions(cls) -> dict[str, FieldInfo]:
        """The fields, each with its docstring as its description.

        Read from the source, and only for who asks: pydantic's own ``use_attribute_docstrings`` reads it in
        every run worker, which took a quarter of the package's import.
        """
        told = {
            one.arg_name: cleandoc(one.description or "")
            for one in docstring_parser.parse_from_object(cls).params
        }
        fields = {name: copy(field) for name, field in cls.model_fields.items()}
        for name, field in fields.items():
            field.description = told[name]
        return fields

    def non_defaults(self) -> dict[str, Any]:
        """What is not as it is by default."""
        fields = type(self).model_fields
        return {name: value for name, value in self if value != fields[name].default}

    def subset(self, names: Iterable[str]) -> Self:
        """The same of these settings, and the defaults of the others: for who takes no others."""
        return type(self)(**{name: getattr(self, name) for name in names})


class Batching(SettingsGroup):
    """How batches are cut and written."""

    allocation: Literal["fair", "greedy"] = "fair"
    """``fair`` shares a live batch equally over the partitions, so that none waits for another; in batches of
    50,000 offsets and more, so in an asset's by default, those whose lag does not fit have their turn in four
    of them: shares are equal over four batches, not within one. ``greedy`` fills it from one after the other:
    fewer, longer ranges (KIP-41 has both)."""
    commit_interval_seconds: types.Seconds = 0.0
    """For fewer, larger commits: a record waits at most this long until its batch starts. A full batch
    (``max_poll_records``) starts at once. The wait is not part of the batch's process timeout. After a crash
    the waiting records are crash lag."""
    max_batch_bytes: types.Bytes | None = None
    """What keys and values of a batch may weigh together, as far as the batches before it tell; the first one
    of a run is small. ``max_poll_records`` bounds it too."""
    in_flight: types.InFlight | None = None
    """How many batches are written at a time, 1 or 2: with 2, while Spark writes one, the next is planned and
    begun, if there is enough data to fill it. Offsets are committed in order all the same. 2 for a table
    unless set; a ``sink`` of your own is called with one at a time."""
    on_slow_record: Literal["raise", "quarantine"] = "raise"
    """A batch that exceeds its budget is retried at half its size; with ``enable_parallel_rebalance`` it
    becomes crash lag, and the catch-up lane halves it. An offset that exceeds the budget alone ends the run
    with its name (``raise``), or becomes a crash lag partition while the other offsets are processed
    (``quarantine``)."""
    on_bad_record: Literal["raise", "dead_letter"] = "raise"
    """A record by which the transform fails ends the run (``raise``). Or the batch is halved until such
    records are found; they are kept in the table ``<table>_dead_letters``, become crash lag partitions, and
    the other records are processed (``dead_letter``)."""
    max_dead_letters: types.Count = 20
    """More of them in one batch, beside those that are dead letters already, are the transform's fault: the
    run ends, and nothing of the batch is passed."""


class CrashLag(SettingsGroup):
    """Crash lag (KIP-333): when it is left to partitions, and how it is caught up."""

    min_offsets: types.OffsetCount = 1
    """With fewer offsets behind, resume in order instead."""
    max_ranges: types.Count | None = None
    """With more pending ranges on a topic's partition, resume in order instead."""
    auto_catch_up: types.Flag = False
    """The sensor starts a run for each crash lag partition by itself, one at a time, oldest first."""
    max_age_seconds: types.Seconds | None = None
    """If a range is pending for longer, the asset check ``crash_lag_age`` warns; without it the check only
    reports."""
    backfill_policy: types.Policy | None = None
    """Into how many runs Dagster cuts a backfill of crash lag: ``dg.BackfillPolicy.multi_run(n)`` for ``n``
    partitions a run; one run for each stretch of neighbouring partitions unless set."""


class Offsets(SettingsGroup):
    """What to do where Kafka's offsets, or the rows of committed ones, are not what they should be."""

    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    """Where to begin while nothing is committed."""
    on_data_loss: Literal["raise", "write_off"] = "raise"
    """Offsets that expired before they were processed end the run (``raise``), or are written off and
    reported as lost (``write_off``)."""
    on_missing_rows: Literal["raise", "crash_lag"] = "raise"
    """If the table has lost rows of committed offsets (it was dropped, replaced or rolled back), the run ends
    with the ranges (``raise``). Or the ranges that the broker still has become crash lag partitions, and the
    others are reported as lost (``crash_lag``): roll a table back and backfill it to repair what a transform
    did."""


class Membership(SettingsGroup):
    """How a live run is a member of its consumer group."""

    liveness: Literal["poll", "progress"] = "poll"
    """``poll`` as in KIP-62: a rebalance waits for the open batch, at most its process timeout. ``progress``:
    rebalances are answered while Spark works, and the process timeout begins again with every finished Spark
    task."""
    group_instance_id: types.MemberId | None = None
    """Makes a static member (KIP-345): a restart within the session timeout moves no partitions. It does not
    leave the group when it closes or is too slow, and others get its partitions a session timeout later. For
    one live run at a time. Without it a run is a dynamic member, whose place its successor takes if it
    dies."""


class Sensor(SettingsGroup):
    """The group's sensor: how often it ticks, which runs it starts, and when its checks warn."""

    max_live_runs: types.Count = 1
    """How many live runs may share the topic's partitions; more than partitions are never started."""
    minimum_interval_seconds: types.Count = 3
    """How often the sensor looks at the group. Dagster's daemon comes by every 5 s and passes over a sensor
    whose last tick ended less than this before: with 5 it would look every 10 s."""
    default_status: types.SensorStatus = dg.DefaultSensorStatus.STOPPED
    """``RUNNING`` starts the sensor with the code location; else switch it on in the UI."""
    on_event: types.Hook | None = None
    """Told each event of the group (``MemberLeft``, ``CrashLagFound``, …) when the sensor first sees it; the
    RunRequests it returns are started. One without a ``run_key`` gets one of its event, so that a repeated
    tick starts nothing twice."""
    event_jobs: types.Jobs = ()
    """Jobs that ``on_event`` may request; with a single one, requests need not name it."""
    max_lag: types.Lag | None = None
    """With more offsets to read than this the asset check ``lag`` warns; without it the check only
    reports."""
    ghost_after_seconds: types.Seconds = 120.0
    """A live run that is at work but no member of its group for so long is reported and no longer counts:
    another is requested. One whose process is gone for sure does not count at once, and is reported as
    failed."""
    fail_ghost_runs: types.Flag = False
    """Every run that no longer counts is reported to Dagster as failed, also where nobody can say whether its
    process is gone."""


class Sla(SettingsGroup):
    """The service level of the table, by the records' timestamps.

    The asset check ``freshness_sla`` watches it. Without a limit there is no such check.
    """

    fresh_seconds: types.PositiveSeconds | None = None
    """Largest age of the oldest record that the live lane has not committed. An idle topic is fresh."""
    complete_minutes: types.PositiveMinutes | None = None
    """Largest age of the oldest record that is not in the table, crash lag included."""

    @property
    def service_level(self) -> ServiceLevel:
        """The same limits in seconds."""
        minutes = self.complete_minutes
        return ServiceLevel(self.fresh_seconds, None if minutes is None else 60 * minutes)


class Iceberg(SettingsGroup):
    """How the table is laid out and committed to: all but ``snapshots`` are of a table that is created."""

    snapshots: Literal["overwrite", "append"] = "overwrite"
    """``append`` commits new offsets as snapshots that streams can read, Spark's ``readStream`` or Flink's,
    and takes 1.6 to 2.1 times as long, the most with small batches; what comes again replaces what was
    there."""
    partition_by: types.PartitionFields = BY_KAFKA_PARTITION
    """Columns, or ``days(column)``, ``hours(…)``, ``months(…)``, ``years(…)``, ``bucket(16, column)``; none
    for a table without partitions."""
    sort_by: types.SortFields = ()
    """Columns by which rows are sorted within files, like ``placed_at DESC``."""
    table_properties: types.Properties = {}  # noqa: RUF012 - pydantic copies it
    """Iceberg's table properties, like ``write.target-file-size-bytes``; they come before this package's
    own."""


class Maintenance(SettingsGroup):
    """How the table is kept small, beside both lanes. Switched on in the UI, or by ``default_status``."""

    cron_schedule: types.Cron = "17 * * * *"
    """When, in UTC; every hour unless set."""
    default_status: types.ScheduleStatus = dg.DefaultScheduleStatus.STOPPED
    """``RUNNING`` starts the schedule with the code location; else switch it on in the UI."""
    min_files: types.Files = 20
    """From so many small files of one partition of the table on they are compacted: rarer, and less is
    rewritten twice. What either lane may still write again is left as it is."""
    max_snapshot_age_seconds: types.Seconds = 432_000.0
    """Older snapshots are expired: 5 days, as Iceberg's own default. Time travel ends there. A table with a
    longer ``history.expire.max-snapshot-age-ms`` keeps them so long, and one with ``gc.enabled=false`` keeps
    all."""
    max_snapshots: types.Count = 1_000
    """Of younger ones those beyond so many, when they are an hour old: each commit writes all of them
    again."""
    orphan_file_age_seconds: types.OrphanAge | None = 259_200.0
    """Files that no snapshot has are deleted after 3 days; None leaves them, and the store is not listed."""


class Completeness(SettingsGroup):
    """When a window of time (``complete_every``) is told complete, and what comes after that."""

    start: types.WindowStart | None = None
    """When the first window begins: ``2026-11-01``, or ``2026-11-01-05:00``, in ``timezone``."""
    timezone: types.TimeZone = "UTC"
    """In which windows begin: an IANA name like ``Europe/Amsterdam``."""
    allowed_lateness_seconds: types.Seconds = 60.0
    """How long behind the end of a window records of it may still come: by the clock, and by the records' own
    timestamps. No window is told earlier."""
    reopen_on_late: types.Flag = False
    """A window for which records came after it was told is told again, once they are in the table. They are
    counted on it (``late_records``) anyway."""
    mark_empty: types.Flag = True
    """An hour without a record is marked complete, too: else it stays missing, and nobody can tell it from an
    hour that waits. ``False`` is for slow topics whose downstream runs need no empty hours. Hours before the
    group's first record are never marked."""


class ResourceKeys(SettingsGroup):
    """Under which keys the code location has the two resources."""

    kafka: types.ResourceKey = "kafka"
    """Of the :class:`KafkaLivenessResource`."""
    spark: types.ResourceKey = "spark"
    """Of the :class:`SparkConnectResource`."""


ONLY_IN_PYTHON: frozenset[str] = frozenset({"on_event", "event_jobs", "backfill_policy"})
"""What no YAML can say: code, and Dagster's own objects."""
