"""Real services, started once for the whole test session and stopped however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import hypothesis
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from tests.durations import DurationRecorder, order_by_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import ModuleType

    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.assets.definitions import KafkaAsset
    from kafka_liveness_dagster.embedded.services import Services

# Each Java process lives for minutes at most: the second compiler costs half of its processor time and gives
# none back. With one compiler alone the code cache is 48 MB, which Spark's generated code fills: sweeping it
# takes much of a core
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")
# Who is started in the background ignores SIGINT; Dagster gives SIGTERM what SIGINT has, and children inherit
# that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Drawing values takes as long as the machine is busy
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

SHARED_HOME = "KAFKA_LIVENESS_TEST_HOME"
"""The environment variable by which the controller names the state folder of the workers' shared services."""
_SPARK_SETTINGS = """\
spark.driver.memory 3g
spark.sql.catalog.locked org.apache.iceberg.spark.SparkCatalog
spark.sql.catalog.locked.type jdbc
spark.sql.catalog.locked.uri jdbc:sqlite:{home}/locked.db?busy_timeout=10000
spark.sql.catalog.locked.jdbc.schema-version V1
spark.sql.catalog.locked.warehouse {home}/locked
spark.sql.catalog.locked.cache-enabled false
"""
"""More memory than one user needs; and a second catalog, for tests that lock its database."""
_TESTS = Path(__file__).parent
_CERTIFY_FOLDERS = {"object_store"}
SPARK_SLOTS = 12
"""Tasks that the shared Spark runs at once: tests hold some of the slots with tasks that only wait."""
_CARETAKER = pytest.StashKey["subprocess.Popen[bytes]"]()
_STOP_SERVICES = """
import shutil, sys
from pathlib import Path
home, keep = Path(sys.argv[1]), sys.stdin.read()  # returns when the test run ends, however it ends
is_started = (home / "services.json").exists()
if is_started:
    from kafka_liveness_dagster.embedded import services
    services.stop_services(home)
if not (keep and is_started):
    shutil.rmtree(home, ignore_errors=True)
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--write-durations`` and ``--golden-update``."""
    parser.addoption(
        "--write-durations", action="store_true", help="rewrite tests/durations.json from this run"
    )
    parser.addoption("--golden-update", action="store_true", help="rewrite the files of tests/golden")


def pytest_configure(config: pytest.Config) -> None:
    """Create the state folder of the shared services, and the child process that stops them.

    No worker can stop them: others may still use them, and pytest-xdist kills its workers 10 s after Ctrl-C.
    """
    if hasattr(config, "workerinput"):
        return
    home = os.environ[SHARED_HOME] = tempfile.mkdtemp(prefix="kafka-liveness-tests-")
    # Written here, before a worker can start Spark: a file that several workers write is empty for a moment
    Path(home, "spark.conf").write_text(_SPARK_SETTINGS.format(home=home))
    command = [sys.executable, "-c", _STOP_SERVICES, home]
    config.stash[_CARETAKER] = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    if config.getoption("write_durations"):
        config.pluginmanager.register(DurationRecorder())


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Stop the shared services; keep their logs and data after a failure."""
    caretaker = session.config.stash.get(_CARETAKER, None)
    if caretaker is not None:
        caretaker.communicate(b"keep" if exitstatus == pytest.ExitCode.TESTS_FAILED else b"")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests, and leave whole folders to ``make certify``."""
    for item in items:
        if _CERTIFY_FOLDERS & set(item.path.relative_to(_TESTS.parent).parts):
            item.add_marker(pytest.mark.certify)
    order_by_duration(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Name a test that hangs, and where, before pytest prints all threads and ends the process."""
    seconds = float(item.config.getini("faulthandler_timeout")) * 0.9
    timer = threading.Timer(seconds, _report_hang, [item, threading.get_ident(), seconds])
    timer.daemon = True
    timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()


def _report_hang(item: pytest.Item, thread_id: int, seconds: float) -> None:
    frames = traceback.extract_stack(sys._current_frames().get(thread_id))
    where = [f"  {Path(one.filename).name}:{one.lineno} {one.name}" for one in reversed(frames[-25:])]
    text = f"\n{item.nodeid} has not ended for {seconds:.0f} s. Its thread, the last call first:\n"
    # Standard error is captured: pytest has kept the real one for its own report
    os.write(item.config.stash[fault_handler_stderr_fd_key], "\n".join([text, *where, ""]).encode())


@pytest.fixture(autouse=True)
def _no_asset_of_another_test() -> None:
    """Forget the assets of earlier tests: two of one process may not write the same rows."""
    owners = sys.modules.get("kafka_liveness_dagster.assets.owners")
    if owners is not None:
        owners._claimed_assets.clear()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager[None]]:
    """A context in which the product can start no more threads, as at a limit of its user or its container.

    It takes a list, for the names of the threads that were not started.
    """

    @contextmanager
    def limit(names: list[str] | None = None) -> Iterator[None]:
        starts = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if not thread.name.startswith(("kafka-liveness", "spark-connect")):  # a server's of the test
                return starts(thread)
            (names if names is not None else []).append(thread.name)
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            yield

    return limit


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """Kafka and Spark Connect, shared by all workers.

    A test that stops, freezes or fills one starts its own.
    """
    from kafka_liveness_dagster.embedded import services as embedded  # noqa: PLC0415
    from kafka_liveness_dagster.kafka import clients  # noqa: PLC0415

    home = Path(os.environ[SHARED_HOME])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_LIVENESS_HOME", str(home))
        with pytest.MonkeyPatch.context() as for_the_start:
            for_the_start.setenv("KAFKA_LIVENESS_SPARK_CONF", str(home / "spark.conf"))
            found = embedded.ensure_services(spark_cores=SPARK_SLOTS)
        yield found
        clients.close_readers()  # which would look for their broker while others still test


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

    from tests.integration.dagster_runs import wait_for  # noqa: PLC0415

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
        # A busy broker says that it is made before it answers for it
        wait_for(lambda: has_leaders(name, partitions))
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
    from kafka_liveness_dagster.spark.connect.session import connect  # noqa: PLC0415

    # A cold server, on a machine that may be busy
    session = connect(services.spark_remote, timeout_seconds=120)
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

    return SqlCatalog(catalog_name, uri=f"{services.catalog_uri}?timeout=60", warehouse=services.warehouse)


@pytest.fixture(scope="session")
def warm_spark(spark: SparkSession, catalog_name: str) -> SparkSession:
    """The first batch of a cold Spark server takes many times as long as the others: here it is nobody's.

    Nor may it be canceled: an interrupt while Iceberg's classes are initialised leaves the server unable to
    write.
    """
    from kafka_liveness_dagster.core.offsets import OffsetRange  # noqa: PLC0415
    from kafka_liveness_dagster.spark.table.write import write_table  # noqa: PLC0415

    ranges, table = [OffsetRange("warm", 0, 0, 1)], f"{catalog_name}.warm_{uuid4().hex[:8]}.orders"
    write_table(
        spark, table, ranges, lambda: spark.sql("SELECT 'warm' AS topic, 0 AS partition, 0L AS offset")
    )
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
