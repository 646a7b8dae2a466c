"""Of which kinds are settings? Each a type, with words for what it wants; no value is turned into another.

A setting is declared by its kind, and :class:`Declared` holds values against it.
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
from kafka_liveness_dagster.core.names import Name
from kafka_liveness_dagster.core.offsets import MAX_OFFSET, MAX_PARTITION, OffsetRange
from kafka_liveness_dagster.core.table_layout import PARTITION_FIELD, SORT_FIELD
from kafka_liveness_dagster.core.timeouts import MAX_BUDGET_SECONDS
from kafka_liveness_dagster.settings.windows import is_start, is_timezone

EMBEDDED = "embedded"  # the services that this package starts
WANTED = "wanted"  # the type of our own errors, among pydantic's
VARIABLES = (dg.EnvVar, type(dg.EnvVar.int("ANY")))
"""What stands for an environment variable: the name as a text, or 0, to whoever does not look it up."""
_MOST = 2**31 - 1  # the integers of Kafka's protocol and of GraphQL end there
_MOST_SECONDS = 10**9  # 31 years: nobody means more, and timers end somewhere beyond
_A_DAY_SECONDS = 86_400
_NAME = re.compile(r"[A-Za-z0-9_]+")
_MOST_OF_A_NAME = 200  # with what is put behind it, and as a key of assets, it fits into Dagster's databases
_GROUP_NAME = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*")


@dataclass(frozen=True)
class Wanted:
    """What a value has to be, in words that replace pydantic's, and what no type of Python's can say of it.

    Attributes:
        or_variable: whether an environment variable may stand for it, as in a resource.
    """

    words: str
    fits: Callable[[Any], bool] = lambda _: True
    or_variable: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The type's own schema, and ours around it: a variable is a text or a number to pydantic."""
        checked = core_schema.no_info_wrap_validator_function(self._checked, handler(source))
        return core_schema.custom_error_schema(checked, WANTED, custom_error_message=self.words)

    def _checked(self, value: Any, check_type: Callable[[Any], Any]) -> Any:
        if isinstance(value, VARIABLES) and not self.or_variable:
            raise ValueError
        found = check_type(value)
        if not (isinstance(value, VARIABLES) or self.fits(found)):
            raise ValueError
        return value if isinstance(value, VARIABLES) else found


class _Made:
    """An object that was made where it is declared, and no dict that one could be made of."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        words = f"kl.{source.__name__}(…)"
        return core_schema.custom_error_schema(
            core_schema.is_instance_schema(source), WANTED, custom_error_message=words
        )


MADE = _Made()


def a(name: Name, or_else: str | None = None, *, or_variable: bool = False) -> Wanted:
    """A text of this kind, or this one word."""
    if or_else is None:
        return Wanted(name.wanted, name.fits, or_variable)
    return Wanted(f"{name.wanted}, or {or_else!r}", lambda text: text == or_else or name.fits(text), or_variable)


def one_of(words: Iterable[str]) -> Wanted:
    """One of these words, where a Literal would keep environment variables out."""
    known = tuple(words)
    return Wanted(", ".join(known), lambda text: text in known, or_variable=True)


def several(given: Any) -> Any:
    """One topic may be given without a list; any collection is one."""
    if isinstance(given, str):
        return (given,)
    is_list = isinstance(given, Collection) and not isinstance(given, (bytes, bytearray, memoryview, Mapping))
    return tuple(given) if is_list else given


def _some(what: str) -> Callable[[Any], Any]:
    def collected(given: Any) -> Any:
        found = several(given)
        if not isinstance(found, tuple):
            raise PydanticCustomError(WANTED, what)
        return found

    return collected


def _topics(given: tuple[str, ...]) -> tuple[str, ...]:
    if not given or len(set(given)) < len(given):
        raise PydanticCustomError(WANTED, "at least one topic, and each once")
    return given


def _is_job(value: Any) -> bool:
    """Dagster decides."""
    try:
        dg.sensor(name="asks", jobs=[value])(lambda _: None)
    except Exception:  # noqa: BLE001 - whatever it says of what is none
        return False
    return True


def _dagster_name(most: int) -> Wanted:
    """Dagster decides which words are its own."""

    def fits(text: str) -> bool:
        if len(text) > most or not _NAME.fullmatch(text):
            return False
        try:
            dg.op(name=text)(lambda: None)
        except dg.DagsterInvalidDefinitionError:
            return False
        return True

    return Wanted(f"1 to {most} letters (a-z, A-Z), digits and _, and no word of Python's or Dagster's own", fits)


def _is_resource_key(text: str) -> bool:
    # Dagster makes fields of a namedtuple of them: with others the code location loads and every run fails
    may_be_a_field = text.isascii() and text.isidentifier() and not text.startswith("_")
    return may_be_a_field and not keyword.iskeyword(text) and text != "io_manager"


def _is_range(r: OffsetRange) -> bool:
    whole = all(type(one) is int for one in (r.partition, r.start, r.end)) and isinstance(r.topic, str)
    return whole and names.TOPIC.fits(r.topic) and r.partition <= MAX_PARTITION and r.end <= MAX_OFFSET


def _is_cron(text: str) -> bool:
    """Dagster decides."""
    try:
        dg.ScheduleDefinition(name="asks", target="*", cron_schedule=text)
    except dg.DagsterInvalidDefinitionError:
        return False
    return True


def _has_named_partitions(asset: dg.AssetsDefinition) -> bool:
    partitions = asset.partitions_def
    return isinstance(partitions, dg.DynamicPartitionsDefinition) and partitions.name is not None


Flag = Annotated[bool, Wanted("True or False")]
Count = Annotated[int, Ge(1), Le(_MOST), Wanted(f"a whole number from 1 to {_MOST:,}")]
Bytes = Annotated[int, Ge(1), Le(2**63 - 1), Wanted("a whole number of bytes, at least 1")]
Files = Annotated[int, Ge(2), Le(_MOST), Wanted(f"a whole number of files from 2 to {_MOST:,}")]
Records = Annotated[Count | Literal["auto"], Wanted(f"a whole number from 1 to {_MOST:,}, or 'auto'")]
InFlight = Annotated[
    int, Ge(1), Le(2), Wanted("1 or 2: more would keep Spark no busier, and a crash would repeat them all")
]
OffsetCount = Annotated[int, Ge(1), Le(MAX_OFFSET), Wanted("a whole number of offsets, at least 1")]
Lag = Annotated[int, Ge(0), Le(MAX_OFFSET), Wanted("a whole number of offsets, 0 or more")]
Seconds = Annotated[float, Ge(0), Le(_MOST_SECONDS), Wanted(f"a number of seconds from 0 to {_MOST_SECONDS:,}")]
Budget = Annotated[
    float,
    Gt(0),
    Le(MAX_BUDGET_SECONDS),
    Wanted(f"a number of seconds above 0, at most {MAX_BUDGET_SECONDS:,.0f} (24 h)"),
]
Text = Annotated[str, a(names.VALUE, or_variable=True)]
Extra = Annotated[dict[str, str], Wanted("names of librdkafka's settings, each with its value as text")]
Servers = Annotated[str, a(names.SERVERS, EMBEDDED, or_variable=True)]
Remote = Annotated[str, a(names.REMOTE, EMBEDDED, or_variable=True)]
Registry = Annotated[str, a(names.REGISTRY, or_variable=True)]
Url = Annotated[str, a(names.URL, or_variable=True)]
Topic = Annotated[str, a(names.TOPIC)]
OwedTopic = Annotated[str, a(names.OWED_TOPIC)]
Topics = Annotated[tuple[Topic, ...], BeforeValidator(_some("a topic, or a list of topics")), AfterValidator(_topics)]
OwedTopics = Annotated[
    tuple[OwedTopic, ...], BeforeValidator(_some("a topic, or a list of topics")), AfterValidator(_topics)
]
GroupId = Annotated[str, a(names.GROUP_ID)]
MemberId = Annotated[str, a(names.MEMBER_ID)]
Table = Annotated[str, a(names.TABLE)]
AssetName = Annotated[str, _dagster_name(_MOST_OF_A_NAME)]
SensorName = Annotated[str, _dagster_name(_MOST_OF_A_NAME + len("_sensor"))]
GroupName = Annotated[
    str,
    Wanted(
        "letters (a-z, A-Z), digits and _, with / between the parts", lambda text: bool(_GROUP_NAME.fullmatch(text))
    ),
]
ResourceKey = Annotated[
    str,
    Wanted("a name for a variable (a-z, A-Z, digits and _), not beginning with _, nor 'io_manager'", _is_resource_key),
]
Called = Annotated[Callable[..., Any], Wanted("something to call")]
Hook = Annotated[Callable[[GroupEvent], dg.RunRequest | Iterable[dg.RunRequest] | None], Wanted("something to call")]
ASink = Annotated[Callable[..., Any], Wanted("something to call: docs/sinks.md has examples")]
Job = Annotated[Any, Wanted("a job", _is_job)]
PartitionFields = Annotated[
    tuple[Annotated[str, a(PARTITION_FIELD)], ...], BeforeValidator(_some("a list of partition fields"))
]
SortFields = Annotated[tuple[Annotated[str, a(SORT_FIELD)], ...], BeforeValidator(_some("a list of columns"))]
Properties = Annotated[dict[str, str], Wanted("names of Iceberg's table properties, each with its value as text")]
Jobs = Annotated[Sequence[Job], BeforeValidator(_some("a list of jobs"))]
Policy = Annotated[InstanceOf[dg.BackfillPolicy], Wanted("a dg.BackfillPolicy")]
ScheduleStatus = Annotated[dg.DefaultScheduleStatus, Wanted("a dg.DefaultScheduleStatus: RUNNING or STOPPED")]
Cron = Annotated[str, Wanted("a cron expression like '17 * * * *', or a word like '@daily'", _is_cron)]
WindowStart = Annotated[str, Wanted("a time like '2026-11-01' or '2026-11-01-05:00'", is_start)]
TimeZone = Annotated[str, Wanted("an IANA time zone like 'UTC' or 'Europe/Amsterdam'", is_timezone)]
OrphanAge = Annotated[
    float,
    Ge(_A_DAY_SECONDS),
    Le(_MOST_SECONDS),
    Wanted(f"a number of seconds from {_A_DAY_SECONDS:,} (a day) on: younger files may be of a batch that is written"),
]
SensorStatus = Annotated[dg.DefaultSensorStatus, Wanted("a dg.DefaultSensorStatus: RUNNING or STOPPED")]
CrashLagAsset = Annotated[
    InstanceOf[dg.AssetsDefinition],
    Wanted("an asset with a dg.DynamicPartitionsDefinition that has a name", _has_named_partitions),
]
Range = Annotated[InstanceOf[OffsetRange], Wanted("an OffsetRange, of one of Kafka's topics", _is_range)]
Ranges = Annotated[tuple[Range, ...], BeforeValidator(_some("a list of OffsetRange"))]
