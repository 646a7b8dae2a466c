"""What every error of this package has in common.

Each error says what happened with its numbers, what it means for the data, and what to do about it.
"""

from __future__ import annotations


class KafkaLivenessError(Exception):
    """Base of every error this package raises on purpose."""

    def append(self, sentence: str) -> None:
        """Append a sentence to the text: a caller may know more of the data than the code that raised."""
        if sentence not in str(self):  # of another consumer of the same process, through which it has passed
            self.args = (f"{str(self).rstrip('.')}. {sentence}", *self.args[1:])


class InvalidSettingError(KafkaLivenessError, ValueError):
    """A setting is refused before anything was joined, committed or written."""


def summary_line(error: BaseException) -> str:
    """Return an error's class and the first line of its text: drivers add statements and links to it."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
