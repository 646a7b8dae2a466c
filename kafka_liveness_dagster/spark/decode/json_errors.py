"""Name the field of one JSON value that does not fit its Spark type, by Spark's rules for ``from_json``.

Decides nothing: Spark refused the value before. Queries nothing.

>>> from pyspark.sql.types import ArrayType, DoubleType, LongType, StructType
>>> items = ArrayType(StructType().add("price", DoubleType()))
>>> order = StructType().add("id", LongType(), nullable=False).add("items", items)
>>> explain(b'{"id": 1, "items": [{"price": 2}, {"price": "abc"}]}', order)
'field items[1].price: expected DOUBLE, got "abc"'
>>> explain(b'{"items": []}', order)
'field id: required, but missing'
>>> explain(b'{"id": 1} and more', order)
'text after the JSON value, at character 11'
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t

from kafka_liveness_dagster.core import hidden_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

UNKNOWN = "the value does not fit its schema"
_MAX_CHARS = 60
_BITS: Mapping[type, int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
_TIME = re.compile(
    r"\s*[+-]?(?P<year>\d{4,6})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})(?:[ T](?P<time>.*))?)?)?\s*",
    re.DOTALL,
)
_CLOCK = re.compile(r"(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.\d*)?)?)?(?!\d).*")
_CLOCK_LIMITS = {"hour": 24, "minute": 60, "second": 60}
_PLAIN_NAME = re.compile(r"\w+")
_SPACES = " \t\n\r"


class _NotJsonError(Exception):
    """The value is not JSON."""


def explain(value: bytes, kind: t.DataType) -> str:
    """Return why a value does not fit, in one line: the field, the expected type, and the value there.

    Args:
        value: the JSON text, in UTF-8.
        kind: the type of the whole value; a field that is not nullable is required.

    Returns:
        :data:`UNKNOWN` if no fault is found: Spark's rules are wider than these. Values are left out if
        ``KAFKA_LIVENESS_HIDE_VALUES`` is set.
    """
    try:
        found = _parse(value)
        return next(_faults(found, kind, ""), UNKNOWN)
    except _NotJsonError as error:
        return str(error)
    except RecursionError:
        return "not JSON: too many levels"


def _parse(value: bytes) -> Any:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise _NotJsonError(f"not UTF-8, at byte {error.start + 1}") from None
    begin = len(text) - len(text.lstrip(_SPACES))
    if begin == len(text):
        raise _NotJsonError("empty value: expected JSON")
    try:
        found, end = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant).raw_decode(
            text, begin
        )
    except json.JSONDecodeError as error:
        raise _NotJsonError(f"not JSON: {error.msg}, at character {error.pos + 1}") from None
    rest = text[end:].lstrip(_SPACES)
    if rest:
        raise _NotJsonError(f"text after the JSON value, at character {len(text) - len(rest) + 1}")
    return found


def _refuse_constant(name: str) -> None:
    raise _NotJsonError(f"not JSON: {name} is no JSON number")


def _faults(value: Any, kind: t.DataType, path: str) -> Iterator[str]:
    """Yield a sentence for each fault in a value that is not null."""
    if isinstance(kind, t.StructType) and isinstance(value, dict):
        for field in kind:
            inside = _join(path, field.name)
            if value.get(field.name) is not None:
                yield from _faults(value[field.name], field.dataType, inside)
            elif not field.nullable:
                yield f"field {inside}: required, but {'null' if field.name in value else 'missing'}"
    elif isinstance(kind, t.ArrayType) and isinstance(value, list):
        for number, element in enumerate(value):
            yield from _part_faults(
                element, kind.elementType, f"{path}[{number}]", nullable=kind.containsNull
            )
    elif isinstance(kind, t.MapType) and isinstance(value, dict):
        for key, part in value.items():
            inside = f"{path}[{json.dumps(key)}]"
            yield from _part_faults(part, kind.valueType, inside, nullable=kind.valueContainsNull)
    elif not _fits(value, kind):
        where = f"field {path}" if path else "the whole value"
        yield f"{where}: expected {_type_name(kind)}, got {_shown(value)}"


def _part_faults(value: Any, kind: t.DataType, path: str, *, nullable: bool) -> Iterator[str]:
    if value is not None:
        yield from _faults(value, kind, path)
    elif not nullable:
        yield f"field {path}: required, but null"


def _fits(value: Any, kind: t.DataType) -> bool:
    """Return whether Spark may take this value, which is neither null nor of the container's form."""
    fits = next((rule for kinds, rule in _RULES if isinstance(kind, kinds)), None)
    return fits is None or fits(value, kind)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, Decimal)) and not isinstance(value, bool)


def _fits_integer(value: Any, kind: t.DataType) -> bool:
    limit = 2 ** (_BITS[type(kind)] - 1)
    return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit


def _fits_decimal(value: Any, kind: t.DecimalType) -> bool:
    if not _is_number(value) and not isinstance(value, str):
        return False
    try:
        number = Decimal(value)
        whole = number.adjusted() + 1 if number else 0
    except (InvalidOperation, ValueError):
        return False
    return number.is_finite() and whole <= kind.precision - kind.scale


def _fits_time(value: Any, kind: t.DataType) -> bool:
    if isinstance(value, str):
        return _fits_time_text(value)
    return type(kind) is t.TimestampType and _is_number(value) and isinstance(value, int)  # seconds


def _fits_time_text(text: str) -> bool:
    found = _TIME.fullmatch(text)
    if found is None:
        return ":" in text and _fits_clock(text.strip().removeprefix("T"))
    year, month, day = (int(found[name] or 1) for name in ("year", "month", "day"))
    try:
        dt.date(
            year % 400 + 400, month, day
        )  # the calendar repeats after 400 years, and Python's ends in 9999
    except ValueError:
        return False
    return not found["time"] or _fits_clock(found["time"])


def _fits_clock(text: str) -> bool:
    found = _CLOCK.match(text)
    return found is not None and all(int(found[name] or 0) < limit for name, limit in _CLOCK_LIMITS.items())


def _fits_base64(value: Any, _: t.DataType) -> bool:
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError):
        return False
    return True


_RULES: tuple[tuple[Any, Callable[[Any, Any], bool]], ...] = (  # of each type; the others take any value
    ((t.StructType, t.ArrayType, t.MapType), lambda _value, _kind: False),
    (tuple(_BITS), _fits_integer),
    ((t.FloatType, t.DoubleType), lambda value, _: _is_number(value)),
    (t.DecimalType, _fits_decimal),
    (t.BooleanType, lambda value, _: isinstance(value, bool)),
    ((t.DateType, t.TimestampType, t.TimestampNTZType), _fits_time),
    (t.BinaryType, _fits_base64),
)


def _join(path: str, name: str) -> str:
    shown = name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"
    return f"{path}.{shown}" if path else shown


def _type_name(kind: t.DataType) -> str:
    if isinstance(kind, (t.StructType, t.ArrayType, t.MapType)):
        return str(kind.typeName()).upper()
    return str(kind.simpleString()).upper()


def _shown(value: Any) -> str:
    if hidden_values.is_enabled():
        kinds = {bool: "a boolean", str: "text", dict: "an object", list: "an array"}
        return "null" if value is None else kinds.get(type(value), "a number")
    if isinstance(value, Decimal):
        return str(value)
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…"
