"""The product does the same to the outside as when the fingerprints were stored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.broker import Committer
from tests.simulation.fingerprints import differing, fingerprints
from tests.simulation.histories import HISTORIES

ROOT = Path(__file__).parents[2]
SOME = range(0, HISTORIES, 20)


def test_some_histories_have_the_stored_effects():
    message = differing(SOME, fingerprints(SOME))
    assert not message, message


@pytest.mark.certify
def test_all_histories_have_the_stored_effects():
    """In other processes, in another order, with another seed of Python's hashes."""
    command = [sys.executable, "-m", "tests.simulation.fingerprints", "--check"]
    env = {**os.environ, "PYTHONHASHSEED": "4711"}
    checked = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_one_commit_more_is_another_history(monkeypatch):
    """A repeated commit violates no invariant, and changes the fingerprint."""
    commit = Committer.commit

    def twice(client, offsets, asynchronous):
        commit(client, offsets, asynchronous)
        return commit(client, offsets, asynchronous)

    monkeypatch.setattr(Committer, "commit", twice)
    assert "5 of 5 histories have other effects" in differing(range(5), fingerprints(range(5)))
