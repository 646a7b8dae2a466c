"""What every error of this package has in common.

Each error says what happened with its numbers, what it means for the data, and what to do about it.
"""

from __future__ import annotations


class KafkaLivenessError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidSettingError(KafkaLivenessError, ValueError):
    """A setting is refused before anything was joined, committed or written."""
