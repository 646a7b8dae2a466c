"""The command for a backfill that ``status`` and ``replay`` print: it runs where the user is."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.cli.backfill_command import materialize_command
from kafka_liveness_dagster.cli.pending_reasons import _keys_of_run

KEYS = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ('[tool.dagster]\nmodule_name = "shop.definitions"', "shop.definitions"),
        ('[tool.dg.project]\nroot_module = "shop"', "shop.definitions"),
        ('[tool.dg.project]\nroot_module = "shop"\ncode_location_target_module = "shop.all"', "shop.all"),
        ('[project]\nname = "shop"', None),
        ("[tool", None),
        ("tool = 1", None),
        ("[tool.dagster]\nmodule_name = 1", None),
        (None, None),
    ],
)
def test_the_module_of_the_project(tmp_path, text, module):
    """As ``dagster dev`` and ``dg dev`` find it; no command without one."""
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    found = materialize_command(tmp_path, "orders_crash_lag", ["b"], KEYS)
    wanted = f"dagster asset materialize -m {module} --select orders_crash_lag --partition b"
    assert found == (wanted if module else "")


def test_a_package_in_src(tmp_path):
    """Python does not find it there by itself; one that it finds needs no path."""
    for package in ("no_such_package_anywhere", "dagster"):
        (tmp_path / "src" / package).mkdir(parents=True)
        (tmp_path / "pyproject.toml").write_text(f'[tool.dagster]\nmodule_name = "{package}.definitions"')
        found = materialize_command(tmp_path, "orders_crash_lag", ["b"], KEYS)
        assert found.startswith("PYTHONPATH=src dagster") is (package != "dagster")


@pytest.mark.parametrize(
    ("keys", "which"),
    [
        (["a"], "--partition a"),
        (["a", "b", "d"], "--partition-range a...b"),
        (["c", "d"], "--partition-range c...d"),
        (["not listed yet"], "--partition 'not listed yet'"),
        ([], ""),
    ],
)
def test_a_range_has_no_other_partition_in_it(tmp_path, keys, which):
    """A green one would be processed again."""
    (tmp_path / "pyproject.toml").write_text('[tool.dagster]\nmodule_name = "shop.definitions"')
    assert materialize_command(tmp_path, "orders_crash_lag", keys, KEYS).endswith(which)


@pytest.mark.parametrize(
    ("tags", "keys"),
    [
        ({}, []),
        ({"dagster/partition": "b"}, ["b"]),
        (
            {"dagster/asset_partition_range_start": "b", "dagster/asset_partition_range_end": "d"},
            ["b", "c", "d"],
        ),
        ({"dagster/asset_partition_range_start": "b", "dagster/asset_partition_range_end": "deleted"}, []),
    ],
)
def test_the_partitions_of_a_run(tags, keys):
    """One, or those between two, in Dagster's order."""
    assert _keys_of_run(tags, KEYS) == keys
