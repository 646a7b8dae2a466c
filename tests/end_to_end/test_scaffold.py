"""A component as ``dg`` scaffolds and checks it in a new project."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

TYPE = "kafka_liveness_dagster.KafkaAssetComponent"
ROOT = Path(__file__).parents[2]
# One process for all commands: each would spend two seconds on its imports
DG = """
import json, sys
from click.testing import CliRunner
from dagster_dg_cli.cli import create_dg_cli

sys.path.insert(0, "src")
done = [CliRunner().invoke(create_dg_cli(), command.split()) for command in sys.argv[1:]]
print(json.dumps([[one.exit_code, one.output] for one in done]))
"""
PROJECT = """
[project]
name = "shop"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
"""
PARENTS = """
import json, sys
sys.path.insert(0, "src")
from shop.definitions import defs

graph = defs().get_repository_def().asset_graph
nodes = {key.to_user_string(): graph.get(key).parent_keys for key in graph.get_all_asset_keys()}
print(json.dumps({key: [parent.to_user_string() for parent in parents] for key, parents in nodes.items()}))
"""
DEFINITIONS = """
from pathlib import Path
import dagster as dg

@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


@pytest.fixture
def dg_in(tmp_path):
    """Run ``dg`` commands in a project of its own: ``dg_in(command, …) -> [[exit code, output], …]``."""
    defs = tmp_path / "src" / "shop" / "defs"
    defs.mkdir(parents=True)
    for package in (defs, defs.parent):
        (package / "__init__.py").touch()
    (defs.parent / "definitions.py").write_text(DEFINITIONS)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    env = {**os.environ, "DAGSTER_DISABLE_TELEMETRY": "1", "NO_COLOR": "1"}

    def run(*commands):
        asked = [sys.executable, "-c", DG, *commands]
        told = subprocess.run(asked, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stderr
        return json.loads(told.stdout.splitlines()[-1])

    return run


def test_dg_scaffolds_what_it_accepts(dg_in, tmp_path):
    """A scaffolded component passes ``dg check`` unedited; what is wrong is told with file and line."""
    new = f"scaffold defs {TYPE}"
    listed, *done = dg_in("list components", f"{new} orders", f"{new} web-orders", "check yaml", "check defs")
    assert TYPE in listed[1]
    assert [code for code, _ in done] == [0, 0, 0, 0], done
    assert "All definitions loaded successfully" in done[-1][1]
    written = tmp_path / "src" / "shop" / "defs" / "web-orders" / "defs.yaml"
    attributes = yaml.safe_load(written.read_text())["attributes"]
    assert attributes["table"] == "lake.shop.web_orders"
    assert attributes["topics"] == ["web-orders"]
    lines = written.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  sql:"))
    written.write_text(
        "\n".join([*lines[:at], "  max_pol_records: 1", "  idle_seconds: -1", *lines[at + 3 :]])
    )
    ((code, said),) = dg_in("check yaml")
    assert code == 1
    assert f"web-orders/defs.yaml:{at + 1}" in said
    assert "'max_pol_records' was unexpected" in said
    assert "'sql' is a required property" in said
    assert f"web-orders/defs.yaml:{at + 2}" in said
    assert "-1 is not valid" in said


def test_a_downstream_asset_of_each_complete_hour(dg_in, tmp_path):
    """The recipe of docs/component.md: its lines in the scaffolded YAML, and its asset."""
    page = (ROOT / "docs" / "component.md").read_text(encoding="utf-8")
    recipe = page[page.index("## A project from nothing") :]
    [lines] = re.findall(r"```yaml\n(.*?)```", recipe, re.DOTALL)
    example = (ROOT / "docs" / "examples" / "orders_an_hour.py").read_text(encoding="utf-8")
    assert example in recipe
    defs = tmp_path / "src" / "shop" / "defs"
    assert dg_in(f"scaffold defs {TYPE} orders")[0][0] == 0
    written = defs / "orders" / "defs.yaml"
    text = written.read_text()
    assert "SELECT topic, partition, offset, " in text
    written.write_text(text.replace("attributes:\n", f"attributes:\n{lines}", 1))
    (defs / "orders_an_hour.py").write_text(example)
    checked = dg_in("check yaml", "check defs")
    assert [code for code, _ in checked] == [0, 0], checked
    found = json.loads(subprocess.check_output([sys.executable, "-c", PARENTS], cwd=tmp_path, text=True))
    assert found["orders_an_hour"] == ["orders_by_hour"]
    assert {"orders", "orders_crash_lag", "orders_by_hour"} < set(found)
