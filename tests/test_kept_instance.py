"""A sensor's Dagster instance is kept between ticks, and is the one that the context and resources use."""

from __future__ import annotations

import dagster as dg
import pytest

from kafka_liveness_dagster.sensor.kept_instance import KeptInstanceSensor


@pytest.fixture
def seen():
    """The instances of the ticks."""
    return []


@pytest.fixture
def sensor(seen):
    """A sensor that notes its instance, and the one that its resource was made with."""

    @dg.resource
    def of_resource(context):
        return context.instance

    def tick(context):
        seen.append(context.instance)
        assert context.resources.of_resource is context.instance
        context.instance.add_dynamic_partitions("seen", [str(len(seen))])
        return dg.SkipReason("seen")

    @dg.job
    def nothing():
        pass

    made = KeptInstanceSensor(
        name="sensor", evaluation_fn=tick, jobs=[nothing], required_resource_keys={"of_resource"}
    )

    def run(reference):
        with dg.build_sensor_context(
            instance_ref=reference, resources={"of_resource": of_resource}
        ) as context:
            made.evaluate_tick(context)

    return run


def _instance(home):
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return dg.DagsterInstance.from_config(str(home))


def test_ticks_share_their_instance_and_it_works_after_a_tick(sensor, seen, tmp_path):
    """Dagster closes what a context opened; this one stays open, and others read what it wrote."""
    with _instance(tmp_path / "one") as instance:
        for _ in range(3):
            sensor(instance.get_ref())
        assert len({id(one) for one in seen}) == 1
        assert sorted(instance.get_dynamic_partitions("seen")) == ["1", "2", "3"]


def test_other_settings_are_another_instance(sensor, seen, tmp_path):
    """A daemon that was started with another dagster.yaml gives another reference."""
    with _instance(tmp_path / "one") as first, _instance(tmp_path / "two") as second:
        sensor(first.get_ref())
        sensor(second.get_ref())
        assert len({id(one) for one in seen}) == 2
        assert [one.get_dynamic_partitions("seen") for one in (first, second)] == [["1"], ["2"]]


def test_an_instance_that_a_caller_gives_is_used(tmp_path, seen):
    """A test of a sensor, for example."""
    made = KeptInstanceSensor(name="sensor", evaluation_fn=lambda context: seen.append(context.instance))
    with _instance(tmp_path / "one") as instance, dg.build_sensor_context(instance) as context:
        made.evaluate_tick(context)
        assert seen == [instance]


def test_a_tick_that_is_skipped_creates_no_resources():
    """And keeps the cursor."""
    created, messages = [], ["idle", None]

    @dg.resource
    def counted():
        created.append("a resource")

    made = KeptInstanceSensor(
        name="sensor",
        evaluation_fn=lambda _: dg.SkipReason("evaluated"),
        job_name="nothing",
        required_resource_keys={"counted"},
        skip_message=lambda _: messages.pop(0),
    )
    with dg.DagsterInstance.ephemeral() as instance:
        for message, count in (("idle", 0), ("evaluated", 1)):
            context = dg.build_sensor_context(instance, cursor="5", resources={"counted": counted})
            with context:
                result = made.evaluate_tick(context)
            assert (result.skip_message, result.cursor, len(created)) == (message, "5", count)
