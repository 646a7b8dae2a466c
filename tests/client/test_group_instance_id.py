"""Under which name a membership joins, where no broker is needed to know it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kafka_liveness_dagster.core.fencing import RunState
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.core.run_ids import instance_id_for_run, run_id_of_instance
from kafka_liveness_dagster.kafka.group_description import MemberDescription
from kafka_liveness_dagster.kafka.live.session import choose_group_instance_id
from kafka_liveness_dagster.kafka.run_context import RunContext
from kafka_liveness_dagster.kafka.settings import LiveSettings

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
DEAD = instance_id_for_run("0000beef", "00c0ffee")
CLASSIC = SimpleNamespace(protocol="classic")


def named(take_over, *members, protocol=CLASSIC, dealt=(), topic=(), **live):
    """The name of a membership of run 0badcafe."""
    link = replace(
        RunContext("0badcafe", "dagster/job/0badcafe/step", lambda: RunState.IN_PROGRESS),
        claim_instance_id=take_over,
    )
    listed = tuple(
        MemberDescription(f"m-{name}", "c", "h", partitions=tuple(dealt), group_instance_id=name)
        for name in members
    )
    cluster = SimpleNamespace(members=lambda _: listed)
    return choose_group_instance_id(cluster, LiveSettings(("t",), "g", **live), protocol, link, set(topic))


def test_only_places_are_asked_for():
    """Names that somebody gave, and members without any, are nobody's to take."""
    asked = []
    assert named(lambda *told: asked.append(told) or told[1][0], None, "etl-0", DEAD) == DEAD
    assert run_id_of_instance(named(lambda *told: asked.append(told), None, "etl-0")) == "0badcafe"
    assert asked == [("g", [DEAD]), ("g", [])]


@pytest.mark.parametrize(
    ("dealt", "topic", "named_after"),
    [((P0, P1), (P0, P1), "0000beef"), ((P0,), (P0, P1), "0badcafe"), ((P0, P1), (P0,), "0badcafe")],
)
def test_a_place_is_no_remedy_where_partitions_must_be_dealt_again(dealt, topic, named_after):
    """A topic has grown, or others are consumed.

    The broker would hand out what the dead run had, and no more.
    """
    taken = named(lambda _, names: next(iter(names), None), DEAD, dealt=dealt, topic=topic)
    assert run_id_of_instance(taken) == named_after


def test_a_run_that_cannot_ask_joins_under_its_own_name(caplog):
    """Dagster's database is away, when it joins or when it joins again: that ends no run."""
    assert run_id_of_instance(named(lambda *_: 1 / 0, DEAD)) == "0badcafe"
    assert "Could not read from Dagster" in caplog.text


def test_who_has_none():
    """A script, a static member of the user's, and any under KIP-848."""
    assert named(None, DEAD) is None
    assert named(lambda _, names: names[0], DEAD, group_instance_id="etl-0") is None
    assert named(lambda _, names: names[0], DEAD, protocol=SimpleNamespace(protocol="consumer")) is None
