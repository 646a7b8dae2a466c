"""Define the base class of all errors of this package.

Each message has what happened with numbers, the state of the data, and the fix. Imports no other module.
"""

from __future__ import annotations


class KafkaLivenessError(Exception):
    """Base class of every error that this package raises on purpose."""

    def append(self, sentence: str) -> None:
        """Append a sentence about the state of the data that only the caller can describe."""
        if sentence not in str(self):  # another consumer of the same process may have appended it already
            self.args = (f"{str(self).rstrip('.')}. {sentence}", *self.args[1:])


class InvalidSettingError(KafkaLivenessError, ValueError):
    """A setting is invalid; nothing was joined, committed or written."""


def summary_line(error: BaseException) -> str:
    """Return an error's class and first line; drivers append statements and links in further lines."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
