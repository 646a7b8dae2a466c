"""Real services, started once for the whole test session and stopped however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.declare.definitions import KafkaAsset
    from kafka_liveness_dagster.embedded.services import Services

# Each Java process lives for minutes at most: the second compiler costs half of its processor time and gives none back.
# With one compiler alone the code cache is 48 MB, which Spark's generated code fills: sweeping it takes much of a core
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")
# Who is started in the background ignores SIGINT; Dagster gives SIGTERM what SIGINT has, and children inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Drawing values takes as long as the machine is busy
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")

LONGEST = (  # minutes each
    "test_first_half",
    "test_witness",
    "test_first_hour",
    "test_second_half",
    "test_kill_matrix",
    "test_rest_and_s3",
    "test_silent_spark",
    "test_silent_broker",
    "test_systemd",
    "test_spark_standalone",
    "test_chaos",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that no process waits for another one at the end."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@contextmanager
def _last_will(code: str) -> Iterator[None]:
    """Have this done after the block even if this process is killed in it, as pytest-xdist does 10 s after Ctrl-C."""
    command = [sys.executable, "-c", f"import sys; sys.stdin.read(); {code}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as heir:
        yield
    assert heir.returncode == 0


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Kafka and Spark Connect with a state folder of their own; the jars are the machine's."""
    from kafka_liveness_dagster.embedded import services as embedded  # noqa: PLC0415
    from kafka_liveness_dagster.kafka import clients  # noqa: PLC0415

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_LIVENESS_HOME", str(tmp_path_factory.mktemp("home")))
        with _last_will("from kafka_liveness_dagster.embedded import services; services.stop()"):
            yield embedded.ensure()
            clients.forget()  # which would look for their broker while others still test


@pytest.fixture(scope="session")
def example() -> Callable[[str], ModuleType]:
    """One of docs/examples, loaded anew: ``example("orders")``."""
    folder = Path(__file__).parents[1] / "docs" / "examples"

    def load(name: str) -> ModuleType:
        spec = spec_from_file_location(f"example_{name}", folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def like() -> Callable[..., KafkaAsset]:
    """An asset with some settings of ours: ``like(asset, topics=["mine"], batching={"in_flight": 1})``.

    A dict changes some settings of a group and leaves the others as they are.
    """

    def make(asset: KafkaAsset, **settings: object) -> KafkaAsset:
        theirs = dict(asset.settings)
        for name, one in settings.items():
            is_part = isinstance(one, dict)
            theirs[name] = type(theirs[name])(**{**dict(theirs[name]), **one}) if is_part else one
        return type(asset)(type(asset.settings)(**theirs))

    return make


@pytest.fixture
def make_topic(services: Services) -> Callable[..., str]:
    """Create a fresh topic: ``make_topic(partitions=1, config={}) -> name``."""
    from confluent_kafka import KafkaException  # noqa: PLC0415
    from confluent_kafka import TopicPartition as KafkaTopicPartition  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # noqa: PLC0415

    from tests.world.stories import wait_for  # noqa: PLC0415

    config = {"bootstrap.servers": services.bootstrap_servers, "log_level": 0}
    admin = AdminClient(config)

    def has_leaders(name: str, partitions: int) -> bool:
        asked = {KafkaTopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}
        asking = AdminClient(config)  # anew: one that met the topic before its leaders may not ask again
        try:
            return all(future.result() for future in asking.list_offsets(asked).values())
        except KafkaException:
            return False

    def make(partitions: int = 1, config: dict[str, str] | None = None) -> str:
        name = f"orders-{uuid4().hex[:8]}"
        admin.create_topics([NewTopic(name, partitions, 1, config=config or {})])[name].result(timeout=20)
        wait_for(lambda: has_leaders(name, partitions))  # a busy broker says that it is made before it answers for it
        return name

    return make


@pytest.fixture
def make_group(services: Services) -> Callable[..., str]:
    """Name a fresh group: ``make_group(session, heartbeat) -> name``, in seconds.

    Under KIP-848 both timeouts are the broker's; a member of the classic protocol brings its own.
    """
    from tests.timeouts import set_timeouts  # noqa: PLC0415

    def make(session: float, heartbeat: float) -> str:
        name = f"etl-{uuid4().hex[:8]}"
        set_timeouts(services.bootstrap_servers, name, session, heartbeat)
        return name

    return make


@pytest.fixture(scope="session")
def produce() -> Callable[[str, str, int, Iterable[str]], None]:
    """Append values: ``produce(bootstrap, topic, partition, values)``; returns when the broker has them."""
    from confluent_kafka import Producer  # noqa: PLC0415

    def send(bootstrap: str, topic: str, partition: int, values: Iterable[str]) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        for value in values:
            producer.produce(topic, value.encode(), partition=partition)
        assert producer.flush(20) == 0

    return send


@pytest.fixture(scope="session")
def spark(services: Services) -> Iterator[SparkSession]:
    """A Spark Connect session for tests that need only one."""
    from kafka_liveness_dagster.spark.session import connect  # noqa: PLC0415

    session = connect(services.spark_remote, timeout_seconds=120)  # a cold server, on a machine that may be busy
    yield session
    session.stop()


@pytest.fixture(scope="session")
def catalog_name() -> str:
    """What Spark calls the catalog of the tables."""
    return "lake"


@pytest.fixture
def catalog(services: Services, catalog_name: str) -> Catalog:
    """The same catalog, without Spark."""
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415

    return SqlCatalog(catalog_name, uri=services.catalog_uri, warehouse=services.warehouse)


@pytest.fixture(scope="session")
def warm_spark(spark: SparkSession, catalog_name: str) -> SparkSession:
    """The first batch of a cold Spark server takes many times as long as the others: here it is nobody's.

    Nor may it be canceled: an interrupt while Iceberg's classes are initialised leaves the server unable to write.
    """
    from kafka_liveness_dagster.core.offsets import OffsetRange  # noqa: PLC0415
    from kafka_liveness_dagster.spark.iceberg import write  # noqa: PLC0415

    ranges, table = [OffsetRange("warm", 0, 0, 1)], f"{catalog_name}.warm_{uuid4().hex[:8]}.orders"
    write(spark, table, ranges, lambda: spark.sql("SELECT 'warm' AS topic, 0 AS partition, 0L AS offset"))
    return spark


@pytest.fixture
def table(catalog_name: str) -> str:
    """The name of a table that does not exist yet, in a namespace of its own."""
    return f"{catalog_name}.shop_{uuid4().hex[:8]}.orders"


@pytest.fixture
def rows(catalog: Catalog) -> Callable[[str], list[dict[str, object]]]:
    """What a table holds, by offset, read without Spark."""

    def read(name: str) -> list[dict[str, object]]:
        found = catalog.load_table(name.partition(".")[2]).scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"], str(row)))

    return read
