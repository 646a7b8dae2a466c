"""The same fixtures as everywhere, on a catalog that speaks REST and keeps its files in S3.

Kafka and Spark are of this folder alone. Spark knows the catalog by four names: ``depot``, ``lake`` as the
example has it, ``shaky`` where what a test says comes between it and both servers, and ``lossy`` where it
comes before the catalog alone.
"""

from __future__ import annotations

import pytest
from pyiceberg.catalog import load_catalog

from tests.conftest import spark, warm_spark  # noqa: F401 - anew, with the services and the catalog of here
from tests.integration.conftest import patient  # noqa: F401 - the same limits as there
from tests.object_store.failing_proxy import FailingProxy
from tests.object_store.servers import started

# Iceberg's own patience is half a minute
IMPATIENT = {"rest.client.max-retries": "1", "s3.retry.num-retries": "0"}


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    """A real REST catalog and a real S3 store."""
    with started(tmp_path_factory.mktemp("stores")) as found:
        yield found


@pytest.fixture(scope="session")
def to_rest(stores):
    """What is between Spark and the REST catalog, when it calls it ``shaky``."""
    with FailingProxy(stores.rest) as found:
        yield found


@pytest.fixture(scope="session")
def to_s3(stores):
    """What is between Spark and the store then."""
    with FailingProxy(stores.s3) as found:
        yield found


@pytest.fixture(scope="session")
def catalog_name():
    """What Spark calls the catalog of the tables."""
    return "depot"


@pytest.fixture(scope="session")
def services(stores, to_rest, to_s3, catalog_name, tmp_path_factory):
    """Kafka and Spark Connect; the catalog comes to Spark as a user's would."""
    from kafka_liveness_dagster.embedded import services as embedded  # noqa: PLC0415

    home = tmp_path_factory.mktemp("home")
    settings = {
        "spark.driver.extraClassPath": stores.class_path(),
        **stores.spark_settings(catalog_name),
        **stores.spark_settings("lake"),
        **stores.spark_settings("shaky", **{"uri": to_rest.url, "s3.endpoint": to_s3.url, **IMPATIENT}),
        **stores.spark_settings("lossy", uri=to_rest.url),
    }
    conf = home / "of-the-user.conf"
    conf.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    try:
        with pytest.MonkeyPatch.context() as patch:  # other tests of this process have a Spark of their own
            patch.setenv("KAFKA_LIVENESS_SPARK_CONF", str(conf))
            found = embedded.ensure_services(home=home)
        yield found
    finally:
        embedded.stop_services(home)


@pytest.fixture
def catalog(stores, catalog_name):
    """The same catalog, without Spark."""
    return load_catalog(catalog_name, **stores.pyiceberg_settings())


@pytest.fixture
def table(table):
    """Its namespace lies in another one, which a JDBC or REST catalog allows."""
    catalog, namespace, name = table.split(".")
    return f"{catalog}.{namespace}.eu.{name}"
