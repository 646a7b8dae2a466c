"""A transform's asset arguments, and Dagster's reaction to a failed run, on the real components."""

from __future__ import annotations

import itertools

import dagster as dg
import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as F  # noqa: N812

import kafka_liveness_dagster as kl
from tests.integration.live_runs import SIZE, LiveRuns


class Geo(dg.ConfigurableResource):
    """Where customers live."""

    country: str


class Cities(dg.IOManager):
    """What every asset has."""

    def handle_output(self, context, obj):
        """Nothing is kept."""

    def load_input(self, context):
        return {"asset": context.asset_key.to_user_string()}


@pytest.fixture
def runs(services, make_topic, produce, table, warm_spark):
    """A lane of two batches."""
    topic = make_topic(1)
    produce(services.bootstrap_servers, topic, 0, map(str, range(2 * SIZE)))
    return LiveRuns(services, topic, table, "classic", batching=kl.Batching(in_flight=1))


def test_a_transform_gets_the_context_resources_and_other_assets(runs, rows):
    """Beside its batch, by name."""

    def orders(context, batch, geo: Geo, cities):
        told = {"run": context.run.run_id, "country": geo.country, "asset": cities["asset"]}
        return batch.select(
            "topic", "partition", "offset", *(F.lit(one).alias(name) for name, one in told.items())
        )

    resources = {"geo": Geo(country="NL"), "io_manager": Cities()}
    runs.beside = dg.Definitions(assets=[dg.AssetSpec("cities")], resources=resources)
    run, _ = runs.run(orders)
    assert run.success
    found = {(row["run"], row["country"], row["asset"]) for row in rows(runs.table)}
    assert found == {(run.run_id, "NL", "cities")}
    assert len(rows(runs.table)) == 2 * SIZE


def test_a_step_that_is_retried_goes_on_where_it_was(runs, rows):
    """In the same run, as another member of the group.

    Nothing is lost or doubled, and each batch is told once.
    """
    runs.settings["retry_policy"] = dg.RetryPolicy(max_retries=1)
    batches = itertools.count(1)

    def fails_once(batch):
        if next(batches) == 2:
            raise ValueError("no such price")
        return batch.select("topic", "partition", "offset")

    run, said = runs.run(fails_once)
    assert run.success, "\n".join(said)
    assert [row["offset"] for row in rows(runs.table)] == list(range(2 * SIZE))
    told = [one for event in runs.events if (one := event.asset_materialization)]
    assert sum(one.metadata["rows_written"].value for one in told) == 2 * SIZE
    assert runs.committed() == 2 * SIZE


def test_headers_are_a_column_when_they_are_asked_for(services, make_topic, table, warm_spark, rows):
    """Empty for a record without them; and no column where nobody asked."""
    topic = make_topic(1)
    producer = Producer({"bootstrap.servers": services.bootstrap_servers})
    for headers in ([("trace", b"0badcafe"), ("trace", None)], None):
        producer.produce(topic, b"tea", partition=0, headers=headers)
    assert producer.flush(120) == 0
    asked = LiveRuns(services, topic, table, "classic", include_headers=True)
    run, said = asked.run(lambda batch: batch.select("topic", "partition", "offset", "headers"))
    assert run.success, "\n".join(said)
    told = [row["headers"] for row in rows(table)]
    assert told == [[{"key": "trace", "value": b"0badcafe"}, {"key": "trace", "value": None}], []], told

    columns = []
    not_asked = LiveRuns(services, topic, f"{table}_plain", "classic", group_id=f"plain-{topic}")
    run, _ = not_asked.run(
        lambda batch: columns.extend(batch.columns) or batch.select("topic", "partition", "offset")
    )
    assert run.success
    assert "headers" not in columns
