"""Check the names and addresses that Kafka, Spark and Dagster accept; store enums by name.

>>> class Fruit(StoredByName):
...     RED_APPLE = "an apple, and it is red"
>>> Fruit.RED_APPLE.code, Fruit.of_code("red-apple") is Fruit.RED_APPLE, Fruit.of_code("pear")
('red-apple', True, None)

Some texts make Kafka's client library end the process: a group id of only blanks, or a topic with an unpaired
surrogate or of 600 letters. The library cuts others silently: leading blanks, and everything after a
NUL. So each text is checked before the library gets it. Connects to nothing.

>>> TOPIC.matches("orders.v1"), TOPIC.matches("orders v1"), GROUP_ID.matches(" ")
(True, False, False)
>>> GROUP_ID.check("etl.catch-up", "group_id")
Traceback (most recent call last):
kafka_liveness_dagster.core.errors.InvalidSettingError: group_id is 'etl.catch-up': wanted 1 to 249...
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kafka_liveness_dagster.core.commit_metadata import CATCH_UP_SUFFIX
from kafka_liveness_dagster.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self


class StoredByName(Enum):
    """An enum with values for people and codes for programs; tags, cursors and logs contain codes."""

    @property
    def code(self) -> str:
        """The name in lower case, with hyphens."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def of_code(cls, code: str) -> Self | None:
        """Return the member with this code; None for an unknown one, perhaps of another version."""
        return next((member for member in cls if member.code == code), None)


MAX_DISPLAY_CHARS = 249  # Kafka's limit for a topic; a longer group id is a mistake

PARTITION_RANGE_SEPARATOR = "..."  # Dagster's
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TABLE = re.compile(r"[A-Za-z0-9_-]{1,255}(\.[A-Za-z0-9_-]{1,255}){2,}")
_SERVER = re.compile(
    r"(?:(?i:plaintext|ssl|sasl_plaintext|sasl_ssl)://)?"
    r"(?:\[[0-9A-Za-z:.%_-]+\]|[0-9A-Za-z._-]+):(?P<port>[0-9]{1,5})"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_display = reprlib.Repr()
_display.maxstring = _display.maxother = 80
_SHORT_SECONDS = 9.95  # shown with tenths; above they are noise
_HOUR_SECONDS = 3_600
_DAY_SECONDS = 86_400


@dataclass(frozen=True)
class NameRule:
    """A rule for texts: the accepted texts, and their description."""

    description: str
    matches: Callable[[str], bool]

    def check(self, value: object, setting: str) -> None:
        """Check that the value is accepted.

        Raises:
            InvalidSettingError: with the setting, the value and the description of accepted texts.
        """
        if not (isinstance(value, str) and self.matches(value)):
            raise InvalidSettingError(f"{setting} is {display(value)}: wanted {self.description}")


def display(value: Any) -> str:
    """Return the value as an error shows it: one line, cut if it is long.

    Some values cannot be converted to text at all.
    """
    try:
        return _display.repr(value)
    except Exception:  # noqa: BLE001 - a number of 5,000 digits, a `__repr__` that raises
        return f"a value of type {type(value).__name__}"


def escape(text: str) -> str:
    r"""Escape another program's text for a terminal or a log.

    The result is one line, and each character that is not printed is escaped.

    >>> escape("kcat\x1b[2J")
    'kcat\\x1b[2J'
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def join_some(things: Sequence[object], max_items: int = 5) -> str:
    """Return the first items as text, and the number of further ones; empty for none.

    >>> join_some(["a", "b"]), join_some(range(1_234), max_items=2)
    ('a, b', '0, 1 and 1,232 more')
    """
    more = len(things) - max_items
    return ", ".join(map(str, things[:max_items])) + (f" and {more:,} more" if more > 0 else "")


def format_count(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> format_count(1, "batch"), format_count(1_200, "batch"), format_count(0, "row")
    ('1 batch', '1,200 batches', '0 rows')
    """
    if count == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def format_duration(seconds: float) -> str:
    """Return a duration: tenths of a second below 10 s, from a minute on its two largest units.

    >>> [format_duration(one) for one in (0.4, 3.2, 38.2, 115, 7_500, 86_400, 273_600)]
    ['0.4 s', '3.2 s', '38 s', '1 min 55 s', '2 h 5 min', '24 h', '3 days 4 h']
    """
    if seconds < _SHORT_SECONDS:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    if whole >= 2 * _DAY_SECONDS:
        parts = [(whole // _DAY_SECONDS, "days"), (whole % _DAY_SECONDS // _HOUR_SECONDS, "h")]
    elif whole >= _HOUR_SECONDS:
        parts = [(whole // _HOUR_SECONDS, "h"), (whole % _HOUR_SECONDS // 60, "min")]
    else:
        parts = [(whole // 60, "min"), (whole % 60, "s")]
    return " ".join(f"{number:,} {unit}" for number, unit in parts if number)


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://")) and _is_text(text)


def _is_text(text: str) -> bool:
    return "\0" not in text and not _SURROGATE.search(text)


def _is_value(text: str) -> bool:
    # librdkafka removes leading blanks, so Spark would get another password
    return _is_text(text) and not text[:1].isspace()


def _is_id(text: str) -> bool:
    # As above; and two groups would look the same if one ended in a blank
    return 0 < len(text) <= MAX_DISPLAY_CHARS and text.isprintable() and text == text.strip()


def _is_group_id(text: str) -> bool:
    return _is_id(text) and not text.endswith(CATCH_UP_SUFFIX)


def _is_topic(text: str) -> bool:
    return _TOPIC.fullmatch(text) is not None and text not in (".", "..")


def _is_crash_lag_topic(text: str) -> bool:
    return _is_topic(text) and PARTITION_RANGE_SEPARATOR not in text


def _is_table(text: str) -> bool:
    return _TABLE.fullmatch(text) is not None


def _is_port(text: str | None) -> bool:
    return text is not None and 0 < int(text) <= 65_535  # noqa: PLR2004 - sixteen bits


def _are_servers(text: str) -> bool:
    found = [_SERVER.fullmatch(one.strip(" ")) for one in text.split(",") if one.strip(" ")]
    return bool(found) and all(one is not None and _is_port(one["port"]) for one in found)


def _is_registry(text: str) -> bool:
    return bool(text) and all(map(_is_bare_url, text.split(",")))


def _is_bare_url(text: str) -> bool:
    if not (_is_url(text) and text.isascii() and text.isprintable()) or " " in text:
        return False
    try:
        url = urlsplit(text)
        is_address = bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is none, half an IPv6 address
        return False
    return is_address and "@" not in url.netloc and not (url.query or url.fragment)


def _is_remote(text: str) -> bool:
    if not (text.startswith("sc://") and text.isascii() and text.isprintable()) or " " in text:
        return False
    try:
        url = urlsplit(text)
        has_address = bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is none, half an IPv6 address
        return False
    nothing, *parameters = url.path.removeprefix("/").split(";")
    return (
        has_address and not nothing and all(_is_parameter(*one.partition("=")) for one in parameters if one)
    )


def _is_parameter(name: str, equals: str, value: str) -> bool:
    return bool(equals) and (name != "session_id" or _UUID.fullmatch(value) is not None)


_ID = f"1 to {MAX_DISPLAY_CHARS} printable characters without a blank at either end"
TEXT = NameRule("text without NUL and without unpaired surrogates", _is_text)
VALUE = NameRule(f"{TEXT.description}, and without leading blanks, which librdkafka removes", _is_value)
TOPIC = NameRule(
    f"a Kafka topic: 1 to {MAX_DISPLAY_CHARS} letters (a-z, A-Z), digits, '.', '_' and '-', but not '.' "
    "or '..'",
    _is_topic,
)
CRASH_LAG_TOPIC = NameRule(
    f"{TOPIC.description}; and without '...', which Dagster reads as a range of partitions, so its "
    "crash lag could not be a single partition",
    _is_crash_lag_topic,
)
GROUP_ID = NameRule(
    f"{_ID}, not ending in {CATCH_UP_SUFFIX!r}, which names the catch-up commit log", _is_group_id
)
MEMBER_ID = NameRule(_ID, _is_id)
TABLE = NameRule(
    "catalog.namespace.table of letters (a-z, A-Z), digits, _ and -, like lake.shop.orders, each part of "
    "at most 255",
    _is_table,
)
SERVERS = NameRule("host:port,host:port with ports from 1 to 65535, without http://", _are_servers)
URL = NameRule("a web address, http://… or https://…", _is_url)
REGISTRY = NameRule(
    "a web address, http://host:port or https://…, or several with commas between them, without a user or "
    "password (username, password), blanks or a question mark",
    _is_registry,
)
ENDPOINT = NameRule(
    "a web address, https://host/path or http://…, without a user or password, blanks or a question mark",
    _is_bare_url,
)
REMOTE = NameRule(
    "a Spark Connect address, sc://host:port/;token=…, in printable ASCII without blanks; a session_id in "
    "it is a UUID",
    _is_remote,
)


def check_group_id(group_id: str) -> None:
    """Refuse a group id that a client does not accept, or that looks like a catch-up commit log's.

    Raises:
        InvalidSettingError: with the description of accepted ids.
    """
    GROUP_ID.check(group_id, "group_id")


_TABLE_DOTS = 2  # catalog.namespace.table; the name of a sink is that of a function or a class


def is_table_name(target: str) -> bool:
    """Return whether a target in the commits is a table, not a custom sink.

    >>> is_table_name("lake.shop.orders"), is_table_name("DatabaseSink")
    (True, False)
    """
    return target.count(".") >= _TABLE_DOTS


def sink_name(sink: object) -> str:
    """Return the name of a sink: its class, its function, or the function that created it."""
    return str(getattr(sink, "__qualname__", type(sink).__name__)).partition(".<locals>")[0]
