"""A production Dagster for the tests of one file, on the Kafka and the Spark that all tests share."""

from __future__ import annotations

from contextlib import ExitStack
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.production.postgres import Postgres
from tests.production.services import Production


@pytest.fixture(scope="module")
def start(services, catalog_name):
    """Start a production Dagster: ``start([{"partitions".

    1}, {}], **settings) -> Production``, a dict a pipeline.
    """
    admin = AdminClient({"bootstrap.servers": services.bootstrap_servers, "log_level": 0})
    with ExitStack() as left:

        def begin(pipelines, **settings):
            postgres = left.enter_context(Postgres())
            production = left.enter_context(Production(services, postgres, **settings))
            for wanted in pipelines:
                topic = f"orders-{uuid4().hex[:8]}"
                admin.create_topics([NewTopic(topic, wanted.get("partitions", 1), 1)])[topic].result()
                production.add(topic, f"{catalog_name}.shop_{uuid4().hex[:8]}.orders", **wanted)
            production.start()
            return production

        yield begin
