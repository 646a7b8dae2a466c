"""The simulation without coverage's tracer."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def untraced():
    """With it histories take three times as long; each branch of the core has tests of its own."""
    tracer = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracer)
