"""Are values of records kept out of what a run reports? Only where an environment variable asks for it.

Spark and Python put the value that they cannot convert into their error.

>>> kind_of(ValueError("hunter2"))
'ValueError'
"""

from __future__ import annotations

import os

VARIABLE = "KAFKA_LIVENESS_HIDE_VALUES"


def is_asked() -> bool:
    """Return whether messages of Spark and of users' functions are to be left out."""
    return os.environ.get(VARIABLE, "").strip().lower() in ("1", "true")


def kind_of(error: BaseException) -> str:
    """Return the class of an error, with Spark's name for the condition: neither contains a value."""
    condition = getattr(error, "getCondition", str)()
    return f"{type(error).__name__} [{condition}]" if condition else type(error).__name__


def reported(error: BaseException) -> str:
    """Return an error's message, or only its kind where messages are left out."""
    return kind_of(error) if is_asked() else str(error)
