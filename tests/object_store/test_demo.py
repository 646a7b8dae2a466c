"""The demo on services of one's own: the catalog speaks REST, and the files are in S3."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from pyiceberg.catalog import load_catalog

from definitions.demo.verdict import TABLE
from tests.end_to_end.conftest import HURRY
from tests.end_to_end.dist import OURS
from tests.end_to_end.test_demo import check_history, demo_in, it_holds

ROOT = Path(__file__).parents[2]


@pytest.fixture
def user(services, stores, tmp_path):
    """Someone who has told the example where the services are, and pyiceberg what Spark calls ``lake``."""
    (tmp_path / "sitecustomize.py").write_text(HURRY)
    (tmp_path / ".pyiceberg.yaml").write_text(
        yaml.safe_dump({"catalog": {"lake": stores.pyiceberg_settings()}})
    )
    kept = {name: value for name, value in os.environ.items() if name not in OURS}
    told = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(tmp_path),
        "PYICEBERG_HOME": str(tmp_path),
        "KAFKA_BOOTSTRAP_SERVERS": services.bootstrap_servers,
        "SPARK_REMOTE": services.spark_remote,
    }
    return SimpleNamespace(env=kept | told)


def test_the_whole_story(user, stores, services, tmp_path):
    """Kill, jump, backfill, compare.

    It holds, nothing is left running, and every file is an object of the store.
    """
    folder = tmp_path / "a story"
    folder.mkdir()
    with demo_in(folder, user, "--json-file", str(folder / "verdict.json")) as told:
        output = told.communicate(timeout=1000)[0]
    it_holds(told.returncode, output, folder / "verdict.json")
    assert services.bootstrap_servers in output
    catalog = load_catalog("lake", **stores.pyiceberg_settings())
    check_history(folder, services.bootstrap_servers, lambda: catalog.load_table(TABLE))
    files = catalog.load_table(TABLE).inspect.files()
    places = files.column("file_path").to_pylist()
    assert [place for place in places if not (stores.objects / place.removeprefix("s3://")).is_file()] == []
    assert len(places) > 0

    with demo_in(folder, user) as again:
        output = again.communicate(timeout=600)[0]
    assert again.returncode == 1
    assert f"topic orders is at {services.bootstrap_servers} already" in " ".join(output.split())
