"""Declare the groups of settings: small objects with their own fields and defaults.

``kafka_asset``, the sections of the component's YAML, ``KafkaLivenessResource.consumer`` and
``build_group_sensor`` all take these same objects, so no setting is declared twice. The docstring below a
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
    """Settings that are declared as one object; each has a default, and may be left out.

    Raises:
        InvalidSettingError: with every invalid setting, its value and the accepted values.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.title = cls.__name__

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.non_defaults().items())
        return f"kl.{type(self).__name__}({settings})"

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Return a model without fields, because Dagster requires one of each class that YAML may contain.

        The component's own section declares the fields, and accepts templates.
        """
        return BaseModel

    @classmethod
    def fields_with_descriptions(cls) -> dict[str, FieldInfo]:
        """Return the fields, each with its docstring as its description.

        The docstrings are read from the source, and only on a call. Pydantic's ``use_attribute_docstrings``
        would read them in every run worker, which took a quarter of the package's import.
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
        """Return the settings that differ from their defaults, by name."""
        fields = type(self).model_fields
        return {name: value for name, value in self if value != fields[name].default}

    def subset(self, names: Iterable[str]) -> Self:
        """Return these settings, with the defaults of all others, for a caller that accepts no others."""
        return type(self)(**{name: getattr(self, name) for name in names})


class Batching(SettingsGroup):
    """Size, order and writes of batches."""

    allocation: Literal["fair", "greedy"] = "fair"
    """``fair`` shares a live batch equally over the partitions, so that none waits for another. In
    batches of 50,000 offsets or more (an asset's default is 100,000), partitions with too much lag for one
    batch take turns. Their shares are then equal over four batches, not within one. With ``greedy`` a batch
    takes from one partition after the other, which gives fewer, longer ranges. KIP-41 has both."""
    commit_interval_seconds: types.Seconds = 0.0
    """Longest time that a record waits until its batch starts; a longer wait gives fewer, larger commits. A
    full batch (``max_poll_records``) starts at once. The wait is not part of the batch's process timeout.
    After a crash the waiting records are crash lag."""
    max_batch_bytes: types.Bytes | None = None
    """Limit in bytes for the keys and values of a batch together, estimated from the records of earlier
    batches. The first batch of a run is small. ``max_poll_records`` limits the batch too."""
    in_flight: types.InFlight | None = None
    """Number of batches that are written at a time, 1 or 2. With 2, the next batch is planned and started
    while Spark writes one, if there is enough data to fill it. Offsets are still committed in order. The
    default is 2 for a table. A custom ``sink`` is called with one batch at a time."""
    on_slow_record: Literal["raise", "quarantine"] = "raise"
    """A batch that exceeds its run budget is retried at half its size. With ``enable_parallel_rebalance`` it
    becomes crash lag, and the catch-up lane halves it. An offset that exceeds the run budget alone ends the
    run with its name (``raise``). Or it becomes a crash lag partition, and the other offsets are processed
    (``quarantine``)."""
    on_bad_record: Literal["raise", "dead_letter"] = "raise"
    """A record at which the transform fails ends the run (``raise``). Or the batch is halved until such
    records are found (``dead_letter``). They are kept in the table ``<table>_dead_letters`` and become crash
    lag partitions, and the other records are processed."""
    max_dead_letters: types.Count = 20
    """Largest number of new dead letters in one batch. More of them mean that the transform is at fault: the
    run ends, and no record of the batch is skipped. Records that are dead letters already do not count."""


class CrashLag(SettingsGroup):
    """Crash lag (KIP-333): from which size it becomes partitions, and the way to process them."""

    min_offsets: types.OffsetCount = 1
    """Smallest number of offsets that become crash lag. With fewer the run resumes in order instead."""
    max_ranges: types.Count | None = None
    """Largest number of pending ranges of one topic partition. With more the run resumes in order instead."""
    auto_catch_up: types.Flag = False
    """Whether the sensor starts a run for each crash lag partition, one at a time, the oldest first."""
    max_age_seconds: types.Seconds | None = None
    """Age in seconds of a pending range above which the asset check ``crash_lag_age`` warns. Without a limit
    the check only reports."""
    backfill_policy: types.Policy | None = None
    """Number of runs of a backfill of crash lag: ``dg.BackfillPolicy.multi_run(n)`` for ``n`` partitions per
    run. By default Dagster starts one run for each stretch of adjacent partitions."""


class Offsets(SettingsGroup):
    """Reactions to missing offsets, and to missing rows of committed offsets."""

    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest"
    """First offset while the group has no committed offset: the oldest, the log end, or none
    (``error``: the run fails)."""
    on_data_loss: Literal["raise", "write_off"] = "raise"
    """Offsets that expired before they were processed end the run (``raise``), or are written off and
    reported as lost (``write_off``)."""
    on_missing_rows: Literal["raise", "crash_lag"] = "raise"
    """If the table has lost rows of committed offsets (it was dropped, replaced or rolled back), the run ends
    with the ranges (``raise``). Or the ranges that the broker still has become crash lag partitions, and the
    others are reported as lost (``crash_lag``). So you can repair the rows of a wrong transform: roll the
    table back, and backfill it."""


class Membership(SettingsGroup):
    """Membership of a live run in its consumer group."""

    liveness: Literal["poll", "progress"] = "poll"
    """``poll``, as in KIP-62: a rebalance waits for the open batch, at most for its process timeout. With
    ``progress`` the member takes part in rebalances while Spark works, and each finished Spark task restarts
    the process timeout."""
    group_instance_id: types.MemberId | None = None
    """Id of a static member (KIP-345): a restart within the session timeout moves no partitions. A static
    member does not leave the group when it closes or is too slow. Other members get its partitions a session
    timeout later. One id is for one live run at a time. Without it a run is a dynamic member. If such a run
    dies, its successor takes over its membership."""


class Sensor(SettingsGroup):
    """The group's sensor: its interval, the runs that it starts, and the limits of its checks."""

    max_live_runs: types.Count = 1
    """Largest number of live runs that share the topic's partitions. The sensor never starts more runs than
    there are partitions."""
    minimum_interval_seconds: types.Count = 3
    """Shortest time between two ticks of the sensor. Dagster's daemon checks each sensor every 5 s. It starts
    no tick if the last one ended less than this time ago. With 5 the sensor would tick every 10 s."""
    default_status: types.SensorStatus = dg.DefaultSensorStatus.STOPPED
    """``RUNNING`` starts the sensor with the code location. Otherwise turn it on in the UI."""
    on_event: types.Hook | None = None
    """Function that the sensor calls with each new event of the group (``MemberLeft``, ``CrashLagFound``, …).
    Dagster starts the RunRequests that it returns. A request without a ``run_key`` gets one from its event,
    so that a repeated tick starts no run twice."""
    event_jobs: types.Jobs = ()
    """Jobs that ``on_event`` may request. With a single job, requests need not name it."""
    max_lag: types.Lag | None = None
    """Number of unread offsets above which the asset check ``lag`` warns. Without a limit the check only
    reports."""
    ghost_after_seconds: types.Seconds = 120.0
    """Time after which a live run in progress that is no member of its group is reported and no longer
    counts. The sensor then requests another run. A run with a process that is certainly gone stops counting
    at once, and the sensor marks it as failed."""
    fail_ghost_runs: types.Flag = False
    """Whether the sensor marks every run that no longer counts as failed, even if the state of its process is
    unknown."""


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
    """Layout and commits of the table. All settings but ``snapshots`` apply when the table is created."""

    snapshots: Literal["overwrite", "append"] = "overwrite"
    """``append`` commits new offsets as snapshots that streams can read (Spark's ``readStream``, Flink). It
    takes 1.6 to 2.1 times as long, the most with small batches. Reprocessed offsets still replace their
    rows."""
    partition_by: types.PartitionFields = BY_KAFKA_PARTITION
    """Columns, or ``days(column)``, ``hours(…)``, ``months(…)``, ``years(…)``, ``bucket(16, column)``. An
    empty list gives a table without partitions."""
    sort_by: types.SortFields = ()
    """Columns that sort the rows within files, like ``placed_at DESC``."""
    table_properties: types.Properties = {}  # noqa: RUF012 - pydantic copies it
    """Iceberg's table properties, like ``write.target-file-size-bytes``. They override this package's
    own."""


class Maintenance(SettingsGroup):
    """Maintenance of the table, next to both lanes. Turn it on in the UI or by ``default_status``."""

    cron_schedule: types.Cron = "17 * * * *"
    """Times of the maintenance, in UTC; by default once an hour."""
    default_status: types.ScheduleStatus = dg.DefaultScheduleStatus.STOPPED
    """``RUNNING`` starts the schedule with the code location. Otherwise turn it on in the UI."""
    min_files: types.Files = 20
    """Number of small files in one table partition from which they are compacted. A larger number compacts
    more rarely and rewrites fewer rows twice. Ranges that a lane may still write again are not compacted."""
    max_snapshot_age_seconds: types.Seconds = 432_000.0
    """Age from which snapshots expire: 5 days, as by Iceberg's own default. Time travel ends there. A table
    with a longer ``history.expire.max-snapshot-age-ms`` keeps them that long. A table with
    ``gc.enabled=false`` keeps all."""
    max_snapshots: types.Count = 1_000
    """Number of younger snapshots to keep. Further ones expire at the age of an hour, because each commit
    writes the metadata of all snapshots again."""
    orphan_file_age_seconds: types.OrphanAge | None = 259_200.0
    """Age from which files without a snapshot are deleted: 3 days. With None they stay, and the store is not
    listed."""


class Completeness(SettingsGroup):
    """Rules that mark a window of time (``complete_every``) as complete, and for later records."""

    start: types.WindowStart | None = None
    """Begin of the first window: ``2026-11-01``, or ``2026-11-01-05:00``, in ``timezone``."""
    timezone: types.TimeZone = "UTC"
    """Time zone of the windows: an IANA name like ``Europe/Amsterdam``."""
    allowed_lateness_seconds: types.Seconds = 60.0
    """Time after the end of a window in which its records may still arrive, by the clock and by the records'
    own timestamps. No window is marked complete earlier."""
    reopen_on_late: types.Flag = False
    """Whether a complete window is marked complete again after late records, once they are in the table. Its
    events count them (``late_records``) in any case."""
    mark_empty: types.Flag = True
    """Whether an hour without a record is marked complete, too. Otherwise it stays missing, and looks like an
    hour that waits. ``False`` is for slow topics if downstream runs need no empty hours. Hours before the
    group's first record are never marked."""


class ResourceKeys(SettingsGroup):
    """Keys of the two resources in the code location."""

    kafka: types.ResourceKey = "kafka"
    """Key of the :class:`KafkaLivenessResource`."""
    spark: types.ResourceKey = "spark"
    """Key of the :class:`SparkConnectResource`."""


ONLY_IN_PYTHON: frozenset[str] = frozenset({"on_event", "event_jobs", "backfill_policy"})
"""Settings that YAML cannot express: code, and Dagster's own objects."""
