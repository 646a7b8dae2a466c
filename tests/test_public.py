"""What a user sees of the package when they look at it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import kafka_liveness_dagster as kl


def test_what_completion_offers_is_public():
    """The names of ``__all__`` and no helper; each can be had, and has a docstring."""
    offered = [name for name in dir(kl) if not name.startswith("_")]
    assert offered == sorted(kl.__all__)
    assert all(getattr(kl, name).__doc__ for name in offered)


def test_the_package_says_which_it_is():
    """Its version is the distribution's, and it is marked as typed (PEP 561)."""
    assert kl.__version__ == version("kafka-liveness-dagster")
    assert (Path(kl.__file__).parent / "py.typed").is_file()
