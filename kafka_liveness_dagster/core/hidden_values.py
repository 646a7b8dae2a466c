"""Keep values of records out of reported errors, if an environment variable is set.

Spark and Python put a value that they cannot convert into their error. Never changes an error itself.

>>> error_kind(ValueError("hunter2"))
'ValueError'
"""

from __future__ import annotations

import os

VARIABLE = "KAFKA_LIVENESS_HIDE_VALUES"


def is_enabled() -> bool:
    """Return whether messages of Spark and of users' functions must be left out."""
    return os.environ.get(VARIABLE, "").strip().lower() in ("1", "true")


def error_kind(error: BaseException) -> str:
    """Return the class of an error, with Spark's name for the condition: neither contains a value."""
    condition = getattr(error, "getCondition", str)()
    return f"{type(error).__name__} [{condition}]" if condition else type(error).__name__


def error_text(error: BaseException) -> str:
    """Return an error's message, or only its kind if messages are left out."""
    return error_kind(error) if is_enabled() else str(error)
