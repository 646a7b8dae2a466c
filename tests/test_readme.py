"""What the README shows is run: its Python blocks here, its doctest by the doctest collector."""

from __future__ import annotations

import re
from pathlib import Path

import dagster as dg
import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(scope="module")
def shown():
    """The README's Python blocks, run one after the other in one namespace."""
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, str(README), "exec"), names)  # noqa: S102 - our own README
    return names


def test_the_ten_lines_give_what_the_readme_says(shown):
    """External asset, live asset, crash lag asset, two jobs and the sensor, under the names the README gives."""
    repository = shown["defs"].get_repository_def()
    assert {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()} == {
        "kafka/orders_topic",
        "orders",
        "orders_crash_lag",
    }
    assert {job.name for job in repository.get_all_jobs()} >= {"orders_job", "orders_crash_lag_job"}
    assert [sensor.name for sensor in repository.sensor_defs] == ["orders_group"]
    dg.Definitions.validate_loadable(shown["defs"])


def test_the_addresses_may_be_left_out(shown):
    """Without addresses both resources are the embedded ones; nothing is started by saying so."""
    kl = shown["kl"]
    assert kl.KafkaLivenessResource().bootstrap_servers == kl.SparkConnectResource().remote == "embedded"
