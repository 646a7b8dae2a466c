"""Warn where a transform decodes in Spark's default mode, which turns bad values into NULLs.

Reads the transform's plan in this process: no record, no job, and no request to Spark. A mode that the
transform sets itself, PERMISSIVE too, is intended, and gives no warning. The same is true of a column for
values that do not fit.

>>> _lax_calls("from_json(string(value), 'a int') AS o, from_csv(x, 'a int', map('mode', 'FAILFAST'))")
['from_json']
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

_FUNCTIONS = ("from_json", "from_csv", "from_xml")
_CALL = re.compile(rf"\b({'|'.join(_FUNCTIONS)})\s*\(", re.IGNORECASE)
_IS_CHOSEN = re.compile(r"\b(?:mode|columnNameOfCorruptRecord)['\"]|\b_corrupt_record\b", re.IGNORECASE)
_OPTIONS = ("mode", "columnnameofcorruptrecord")


def lax_decoder_warnings(rows: DataFrame) -> list[str]:
    """Return a warning for each decoder in the plan of these rows that has no mode; often none.

    A view, and rows that the transform collected before, hide the calls behind them.
    """
    plan = rows._plan.to_proto(rows.sparkSession.client)  # noqa: SLF001 - pyspark has no public form of it
    return [_warning(name) for name in sorted(set(_lax_functions(plan)))]


def _warning(name: str) -> str:
    strict = "decode with kl.from_json" if name == "from_json" else "set its option mode to FAILFAST"
    return (
        f"The transform uses {name} in Spark's default mode, PERMISSIVE: a value that does not fit becomes "
        f"NULL in the table, neither an error nor a dead letter. Fix: {strict}; or set its option mode to "
        "PERMISSIVE, if the NULLs are intended."
    )


def _lax_functions(message: Any) -> Iterator[str]:
    """Yield the decoders without a mode in a part of a plan of Spark Connect."""
    if message.DESCRIPTOR.name == "UnresolvedFunction" and message.function_name.lower() in _FUNCTIONS:
        texts = [text for argument in message.arguments[1:] for text in _literals(argument)]
        if not any(text.lower() in _OPTIONS or "_corrupt_record" in text for text in texts):
            yield message.function_name.lower()
    for field, value in message.ListFields():
        if field.name in ("expression", "query") and isinstance(value, str):  # SQL
            yield from _lax_calls(value)
        for part in _messages(value):
            yield from _lax_functions(part)


def _literals(message: Any) -> Iterator[str]:
    for field, value in message.ListFields():
        if field.name == "string" and isinstance(value, str):
            yield value
        for part in _messages(value):
            yield from _literals(part)


def _messages(value: Any) -> Iterator[Any]:
    """Yield the messages in the value of a field: one, a list, or a map."""
    parts = value.values() if hasattr(value, "values") and not hasattr(value, "ListFields") else value
    if hasattr(value, "ListFields"):
        yield value
    elif not isinstance(parts, (str, bytes, int, float)):
        yield from (one for one in parts if hasattr(one, "ListFields"))


def _lax_calls(sql: str) -> list[str]:
    calls = ((found[1].lower(), _arguments(sql, found.end())) for found in _CALL.finditer(sql))
    return sorted({name for name, arguments in calls if not _IS_CHOSEN.search(arguments)})


def _arguments(sql: str, begin: int) -> str:
    """Return the text of a call's arguments, up to its closing bracket."""
    depth = 1
    for position in range(begin, len(sql)):
        depth += {"(": 1, ")": -1}.get(sql[position], 0)
        if not depth:
            return sql[begin:position]
    return sql[begin:]
