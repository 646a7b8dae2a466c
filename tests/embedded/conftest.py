"""A state folder per test or per module, with the jars of this machine, and no process left in either."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

from kafka_liveness_dagster.embedded import services

if TYPE_CHECKING:
    from pathlib import Path


def _processes_of(home: Path) -> list[psutil.Process]:
    """Living processes that name the state folder on their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        named = any(str(home) in argument for argument in process.info["cmdline"] or ())
        if named and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@pytest.fixture(scope="session")
def processes_of():
    """Which living processes name a state folder on their command line."""
    return _processes_of


@pytest.fixture(scope="module", autouse=True)
def environment():
    """What the environment of whoever runs the tests says counts for the jars alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KAFKA_LIVENESS_HOME", raising=False)
        patch.delenv("KAFKA_LIVENESS_IVY_SETTINGS", raising=False)
        yield patch


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A state folder of one test; nothing runs in it afterwards."""
    folder = tmp_path / "state"
    monkeypatch.setenv("KAFKA_LIVENESS_HOME", str(folder))
    yield folder
    services.stop_services(folder)
    assert not _processes_of(folder)


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory, environment):
    """A state folder of one module; nothing runs in it afterwards."""
    folder = tmp_path_factory.mktemp("shared") / "state"
    environment.setenv("KAFKA_LIVENESS_HOME", str(folder))
    yield folder
    services.stop_services(folder)
    assert not _processes_of(folder)
