"""Commands about one group, while another topic of the cluster is deleted."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.kafka import admin
from kafka_liveness_dagster.kafka.clients import admin_client
from tests.integration.group_with_table import GroupWithTable
from tests.waiting import wait_for


@pytest.fixture
def world(services, produce, rows, warm_spark, instance):
    """A group with a table, which owes nothing; its runs are Dagster's at DAGSTER_HOME."""
    found = GroupWithTable(services, produce, rows, warm_spark)
    found.instance = instance
    found.grow_to(20)
    assert found.live() is None
    return found


class OutdatedAdmin:
    """An admin client; each of its lists of all topics names one that is deleted right after it."""

    def __init__(self, admin, make_topic, doomed):
        self._admin, self._make_topic, self._doomed = admin, make_topic, doomed

    def __getattr__(self, name):
        return getattr(self._admin, name)

    def list_topics(self, **settings):
        name = self._make_topic(3)
        found = self._admin.list_topics(**settings)
        assert name in found.topics
        self._admin.delete_topics([name])[name].result()
        wait_for(lambda: name not in self._admin.list_topics(timeout=60).topics)
        self._doomed.append(name)
        return found


@pytest.fixture
def doomed(make_topic, monkeypatch):
    """The names of the topics that were deleted after a command had listed them."""
    found = []

    def outdated_client(settings):
        client, listener = admin_client(settings)
        return OutdatedAdmin(client, make_topic, found), listener

    monkeypatch.setattr(admin, "admin_client", outdated_client)
    return found


def test_a_topic_deleted_meanwhile_disturbs_no_other_group(world, doomed, services):
    """A cluster has many topics, and each command that reads all of them takes one moment's list."""
    spark = ["--spark", services.spark_remote]
    commands = [
        ["status", world.group],
        ["status", world.group, "--table", world.table, *spark],
        ["health", world.group, "--allow-no-member"],
        ["audit", world.group, *spark],
        ["replay", world.group, "--from", "2020-01-01", "--asset", f"{world.name}_crash_lag"],
        ["start", f"{world.group}-new", "--from-group", world.group, "--yes"],
        ["move", world.group, f"{world.table}_2"],
    ]
    found = {}
    for words in commands:
        doomed.clear()
        result = CliRunner().invoke(main, [*words, "--bootstrap-servers", world.servers])
        assert doomed, "it has listed the topics"
        if result.exit_code or any(name in result.output for name in doomed):
            found[" ".join(words)] = result.output
    assert found == {}
