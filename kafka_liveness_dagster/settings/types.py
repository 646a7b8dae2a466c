"""Define the types of settings, each with a description of the accepted values.

:class:`ValidatedSettings` checks values by these types. Never converts a value into another one.
"""

# No `from __future__ import annotations` here: pydantic reads the annotations.

import keyword
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import dagster as dg
from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, BeforeValidator, GetCoreSchemaHandler, InstanceOf
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from kafka_liveness_dagster.core import names
from kafka_liveness_dagster.core.events import GroupEvent
from kafka_liveness_dagster.core.names import NameRule
from kafka_liveness_dagster.core.offsets import MAX_OFFSET, MAX_PARTITION, OffsetRange
from kafka_liveness_dagster.core.table_layout import PARTITION_FIELD, SORT_FIELD
from kafka_liveness_dagster.core.timeouts import MAX_BUDGET_SECONDS
from kafka_liveness_dagster.settings.windows import is_timezone, is_window_start

EMBEDDED = "embedded"  # the services that this package starts
CONSTRAINT_ERROR = "wanted"  # the type of this package's errors among pydantic's
ENV_VARS = (dg.EnvVar, type(dg.EnvVar.int("ANY")))
"""Placeholders of environment variables. Code that does not resolve them reads the name as text, or 0."""
_MAX_INT = 2**31 - 1  # the largest integer of Kafka's protocol and of GraphQL
_MAX_SECONDS = 10**9  # 31 years: more is a mistake, and timers fail for much larger numbers
_MAX_MINUTES = 10**7  # 19 years
_DAY_SECONDS = 86_400
_NAME = re.compile(r"[A-Za-z0-9_]+")
_MAX_NAME_CHARS = 200  # with its suffixes, and as an asset key, it fits into Dagster's databases
_GROUP_NAME = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*")


@dataclass(frozen=True)
class Constraint:
    """A rule for a value that its Python type cannot express.

    Attributes:
        description: description of the accepted values; it replaces pydantic's.
        matches: returns whether a value of the type is accepted.
        or_variable: whether the value may be an environment variable, as in a resource.
    """

    description: str
    matches: Callable[[Any], bool] = lambda _: True
    or_variable: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the type's schema inside this check, because pydantic reads a variable as text or number."""
        checked = core_schema.no_info_wrap_validator_function(self._checked, handler(source))
        return core_schema.custom_error_schema(
            checked, CONSTRAINT_ERROR, custom_error_message=self.description
        )

    def _checked(self, value: Any, check_type: Callable[[Any], Any]) -> Any:
        if isinstance(value, ENV_VARS) and not self.or_variable:
            raise ValueError
        found = check_type(value)
        if not (isinstance(value, ENV_VARS) or self.matches(found)):
            raise ValueError
        return value if isinstance(value, ENV_VARS) else found


class _Instance:
    """A check for an object of the class itself; a dict with its fields is refused."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        words = f"kl.{source.__name__}(…)"
        return core_schema.custom_error_schema(
            core_schema.is_instance_schema(source), CONSTRAINT_ERROR, custom_error_message=words
        )


INSTANCE = _Instance()


def text_type(rule: NameRule, or_else: str | None = None, *, or_variable: bool = False) -> Constraint:
    """Return the type of a text that this rule accepts, or of this one word."""
    if or_else is None:
        return Constraint(rule.description, rule.matches, or_variable)
    return Constraint(
        f"{rule.description}, or {or_else!r}", lambda text: text == or_else or rule.matches(text), or_variable
    )


def one_of(words: Iterable[str]) -> Constraint:
    """Return the type of one of these words, or of an environment variable, which a Literal refuses."""
    known = tuple(words)
    return Constraint(", ".join(known), lambda text: text in known, or_variable=True)


def as_tuple(given: Any) -> Any:
    """Return a collection, or one text, as a tuple; any other value as it is."""
    if isinstance(given, str):
        return (given,)
    is_list = isinstance(given, Collection) and not isinstance(given, (bytes, bytearray, memoryview, Mapping))
    return tuple(given) if is_list else given


def _collection_of(what: str) -> Callable[[Any], Any]:
    def collected(given: Any) -> Any:
        found = as_tuple(given)
        if not isinstance(found, tuple):
            raise PydanticCustomError(CONSTRAINT_ERROR, what)
        return found

    return collected


def _topics(given: tuple[str, ...]) -> tuple[str, ...]:
    if not given or len(set(given)) < len(given):
        raise PydanticCustomError(CONSTRAINT_ERROR, "at least one topic, and each once")
    return given


def _is_job(value: Any) -> bool:
    """Return whether Dagster accepts it as a job of a sensor."""
    try:
        dg.sensor(name="asks", jobs=[value])(lambda _: None)
    except Exception:  # noqa: BLE001 - Dagster raises different errors for different values
        return False
    return True


def _dagster_name(most: int) -> Constraint:
    """Return the type of a name that Dagster accepts for an op; Dagster knows its reserved words."""

    def fits(text: str) -> bool:
        if len(text) > most or not _NAME.fullmatch(text):
            return False
        try:
            dg.op(name=text)(lambda: None)
        except dg.DagsterInvalidDefinitionError:
            return False
        return True

    return Constraint(
        f"1 to {most} letters (a-z, A-Z), digits and _, but no reserved word of Python or Dagster", fits
    )


def _is_resource_key(text: str) -> bool:
    # Dagster makes them fields of a namedtuple. With other keys the code location loads, but every run fails
    may_be_a_field = text.isascii() and text.isidentifier() and not text.startswith("_")
    return may_be_a_field and not keyword.iskeyword(text) and text != "io_manager"


def _is_range(value: OffsetRange) -> bool:
    whole = all(type(one) is int for one in (value.partition, value.start, value.end)) and isinstance(
        value.topic, str
    )
    return (
        whole
        and names.TOPIC.matches(value.topic)
        and value.partition <= MAX_PARTITION
        and value.end <= MAX_OFFSET
    )


def _is_cron(text: str) -> bool:
    """Return whether Dagster accepts it as a cron schedule."""
    try:
        dg.ScheduleDefinition(name="asks", target="*", cron_schedule=text)
    except dg.DagsterInvalidDefinitionError:
        return False
    return True


def _has_named_partitions(asset: dg.AssetsDefinition) -> bool:
    partitions = asset.partitions_def
    return isinstance(partitions, dg.DynamicPartitionsDefinition) and partitions.name is not None


Flag = Annotated[bool, Constraint("True or False")]
Count = Annotated[int, Ge(1), Le(_MAX_INT), Constraint(f"a whole number from 1 to {_MAX_INT:,}")]
Bytes = Annotated[int, Ge(1), Le(2**63 - 1), Constraint("a whole number of bytes, at least 1")]
Files = Annotated[int, Ge(2), Le(_MAX_INT), Constraint(f"a whole number of files from 2 to {_MAX_INT:,}")]
Records = Annotated[Count | Literal["auto"], Constraint(f"a whole number from 1 to {_MAX_INT:,}, or 'auto'")]
InFlight = Annotated[
    int,
    Ge(1),
    Le(2),
    Constraint("1 or 2; more would not make Spark faster, and a crash would repeat all of them"),
]
OffsetCount = Annotated[int, Ge(1), Le(MAX_OFFSET), Constraint("a whole number of offsets, at least 1")]
Lag = Annotated[int, Ge(0), Le(MAX_OFFSET), Constraint("a whole number of offsets, 0 or more")]
Seconds = Annotated[
    float, Ge(0), Le(_MAX_SECONDS), Constraint(f"a number of seconds from 0 to {_MAX_SECONDS:,}")
]
PositiveSeconds = Annotated[
    float, Gt(0), Le(_MAX_SECONDS), Constraint(f"a number of seconds above 0, at most {_MAX_SECONDS:,}")
]
PositiveMinutes = Annotated[
    float, Gt(0), Le(_MAX_MINUTES), Constraint(f"a number of minutes above 0, at most {_MAX_MINUTES:,}")
]
Budget = Annotated[
    float,
    Gt(0),
    Le(MAX_BUDGET_SECONDS),
    Constraint(f"a number of seconds above 0, at most {MAX_BUDGET_SECONDS:,.0f} (24 h)"),
]
Text = Annotated[str, text_type(names.VALUE, or_variable=True)]
Extra = Annotated[dict[str, str], Constraint("names of librdkafka's settings, each with its value as text")]
Servers = Annotated[str, text_type(names.SERVERS, EMBEDDED, or_variable=True)]
Remote = Annotated[str, text_type(names.REMOTE, EMBEDDED, or_variable=True)]
Registry = Annotated[str, text_type(names.REGISTRY, or_variable=True)]
Url = Annotated[str, text_type(names.URL, or_variable=True)]
Topic = Annotated[str, text_type(names.TOPIC)]
OwedTopic = Annotated[str, text_type(names.CRASH_LAG_TOPIC)]
Topics = Annotated[
    tuple[Topic, ...],
    BeforeValidator(_collection_of("a topic, or a list of topics")),
    AfterValidator(_topics),
]
OwedTopics = Annotated[
    tuple[OwedTopic, ...],
    BeforeValidator(_collection_of("a topic, or a list of topics")),
    AfterValidator(_topics),
]
GroupId = Annotated[str, text_type(names.GROUP_ID)]
MemberId = Annotated[str, text_type(names.MEMBER_ID)]
Table = Annotated[str, text_type(names.TABLE)]
AssetName = Annotated[str, _dagster_name(_MAX_NAME_CHARS)]
SensorName = Annotated[str, _dagster_name(_MAX_NAME_CHARS + len("_sensor"))]
GroupName = Annotated[
    str,
    Constraint(
        "letters (a-z, A-Z), digits and _, with / between the parts",
        lambda text: bool(_GROUP_NAME.fullmatch(text)),
    ),
]
ResourceKey = Annotated[
    str,
    Constraint(
        "a variable name (a-z, A-Z, digits and _) that does not begin with _ and is not 'io_manager'",
        _is_resource_key,
    ),
]
AnyCallable = Annotated[Callable[..., Any], Constraint("a callable")]
Hook = Annotated[
    Callable[[GroupEvent], dg.RunRequest | Iterable[dg.RunRequest] | None], Constraint("a callable")
]
SinkCallable = Annotated[Callable[..., Any], Constraint("a callable; docs/sinks.md has examples")]
Job = Annotated[Any, Constraint("a job", _is_job)]
PartitionFields = Annotated[
    tuple[Annotated[str, text_type(PARTITION_FIELD)], ...],
    BeforeValidator(_collection_of("a list of partition fields")),
]
SortFields = Annotated[
    tuple[Annotated[str, text_type(SORT_FIELD)], ...], BeforeValidator(_collection_of("a list of columns"))
]
Properties = Annotated[
    dict[str, str], Constraint("names of Iceberg's table properties, each with its value as text")
]
Jobs = Annotated[Sequence[Job], BeforeValidator(_collection_of("a list of jobs"))]
Policy = Annotated[InstanceOf[dg.BackfillPolicy], Constraint("a dg.BackfillPolicy")]
ScheduleStatus = Annotated[
    dg.DefaultScheduleStatus, Constraint("a dg.DefaultScheduleStatus: RUNNING or STOPPED")
]
Cron = Annotated[str, Constraint("a cron expression like '17 * * * *', or a word like '@daily'", _is_cron)]
WindowStart = Annotated[str, Constraint("a time like '2026-11-01' or '2026-11-01-05:00'", is_window_start)]
TimeZone = Annotated[str, Constraint("an IANA time zone like 'UTC' or 'Europe/Amsterdam'", is_timezone)]
OrphanAge = Annotated[
    float,
    Ge(_DAY_SECONDS),
    Le(_MAX_SECONDS),
    Constraint(
        f"a number of seconds, at least {_DAY_SECONDS:,} (a day), because younger files may belong to a "
        "batch in progress"
    ),
]
SensorStatus = Annotated[dg.DefaultSensorStatus, Constraint("a dg.DefaultSensorStatus: RUNNING or STOPPED")]
CrashLagAsset = Annotated[
    InstanceOf[dg.AssetsDefinition],
    Constraint("an asset with a dg.DynamicPartitionsDefinition that has a name", _has_named_partitions),
]
Range = Annotated[InstanceOf[OffsetRange], Constraint("an OffsetRange of a Kafka topic", _is_range)]
Ranges = Annotated[tuple[Range, ...], BeforeValidator(_collection_of("a list of OffsetRange"))]
