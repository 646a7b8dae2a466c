"""Real brokers: started once, found by all, restarted with what they held, ended without a trace."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import psutil
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.embedded import services, state
from kafka_liveness_dagster.embedded.state import PortTakenError, ServiceNotStartedError, StartedService
from tests.waiting import wait_for

KAFKA = ("kafka",)
ENSURE = (
    "from kafka_liveness_dagster.embedded import services; found = "
    "services.ensure_services(which=('kafka',)); "
)


def python(code):
    """The command that runs it."""
    return [sys.executable, "-c", code]


def test_many_processes_that_ask_at_once_find_one_broker(home, processes_of):
    """However many processes ask at once, one broker is started and all of them get its address."""

    def ask(_):
        code = ENSURE + "print(found.bootstrap_servers)"
        return subprocess.run(python(code), capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(6) as pool:
        addresses = set(pool.map(ask, range(6)))
    assert len(addresses) == 1
    assert len(processes_of(home)) == 1


def test_a_killed_broker_comes_back_with_its_topics_and_offsets(home):
    """A kill -9 loses no topic and no committed offset, and clients find the broker where it was."""
    before = services.ensure_services(which=KAFKA)
    admin = AdminClient({"bootstrap.servers": before.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("orders", 4)])["orders"].result()
    committed = ConsumerGroupTopicPartitions("orders-etl", [TopicPartition("orders", 3, 70)])

    def error():  # result() raises for the group only
        altered = admin.alter_consumer_group_offsets([committed])["orders-etl"].result()
        return altered.topic_partitions[0].error

    wait_for(lambda: error() is None, what="the broker knows the new topic")
    broker = psutil.Process(state.read_state(home)["kafka"].pid)
    broker.kill()
    broker.wait(60)
    assert services.running_services() is None

    assert services.ensure_services(which=KAFKA) == before
    group = Consumer(
        {"bootstrap.servers": before.bootstrap_servers, "group.id": "orders-etl", "log_level": 0}
    )
    try:
        assert len(group.list_topics(timeout=60).topics["orders"].partitions) == 4
        assert group.committed([TopicPartition("orders", 3)], timeout=60)[0].offset == 70
    finally:
        group.close()


def down():
    """``kafka-liveness down``: what it prints."""
    return CliRunner().invoke(main, ["down"], catch_exceptions=False).output


def test_only_up_ends_what_down_began(home, processes_of):
    """After ``down`` no resource, tick, run or library call starts a service.

    Each names the command that does.
    """

    @kl.kafka_asset(topics=["orders"], group_id="orders-etl", table="lake.shop.orders")
    def orders(batch):
        return batch

    assert (down(), home.exists()) == ("stopped: nothing ran\n", False)
    kafka, spark = kl.KafkaLivenessResource(), kl.SparkConnectResource()
    before = kafka.settings()  # a folder in which nothing was ever started: the first use starts Kafka
    assert (down(), down()) == ("stopped: kafka\n", "stopped: nothing ran\n")

    says = f"The embedded services of {home} were stopped by `kafka-liveness down`"
    for refused in (kafka.settings, spark.session, lambda: services.ensure_services(home=home)):
        with pytest.raises(kl.ServicesDownError) as raised:
            refused()
        assert str(raised.value).startswith(says)
        assert "Fix: run `kafka-liveness up`" in str(raised.value)
    resources = {"kafka": kafka, "spark": spark}
    with dg.DagsterInstance.ephemeral() as instance:
        with dg.build_sensor_context(instance, resources=resources, cursor="kept") as context:
            tick = orders.sensor.evaluate_tick(context)
        assert (tick.skip_message or "").startswith(says)
        assert (tick.run_requests, tick.cursor) == ([], "kept")
        run = dg.materialize([orders.live], resources=resources, instance=instance, raise_on_error=False)
        [failed] = run.get_step_failure_events()
        assert "`kafka-liveness up`" in failed.event_specific_data.error.to_string()
    assert (processes_of(home), services.running_services()) == ([], None)

    assert (
        services.ensure_services(which=KAFKA, even_if_down=True).bootstrap_servers == before.bootstrap_servers
    )
    services.stop_services()  # as a test or the demo does, which no person asked for
    assert kafka.settings().bootstrap_servers == before.bootstrap_servers


def test_nothing_runs_after_a_down_that_meets_starts(home, processes_of):
    """Whoever has the lock first: what was started before ``down`` is ended, what comes later is refused."""
    state.create_home(home)
    state.write_state(home, {"kafka": StartedService(port=9)})
    with ThreadPoolExecutor(3) as pool:
        with services._locked_state(home):
            code = ENSURE + "print(found.bootstrap_servers)"
            starts = [
                pool.submit(subprocess.run, python(code), capture_output=True, text=True) for _ in range(2)
            ]
            stops = pool.submit(down)
        assert stops.result().startswith("stopped: ")
        for one in starts:
            assert one.result().returncode == 0 or "`kafka-liveness up`" in one.result().stderr
    assert processes_of(home) == []


def test_down_waits_for_a_first_start(home, monkeypatch):
    """Nothing is noted while the jars come.

    A `down` that took this for nothing would be followed by the services.
    """
    state.create_home(home)
    monkeypatch.setattr(services, "LOCK_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setenv("KAFKA_LIVENESS_START_SECONDS", "0.05")
    with services._locked_state(home):
        assert "Another process has been starting or stopping" in down()
    assert down() == "stopped: nothing ran\n"
    assert not state.is_down(home), "nothing was ever started: the first use still starts it"


def test_a_pid_that_belongs_to_another_program_is_never_signalled(home):
    """A stale pid is recognised: neither down nor up ends the program that has the number now."""
    state.create_home(home)
    with subprocess.Popen(python("input()"), stdin=subprocess.PIPE) as other:
        state.write_state(
            home,
            {"kafka": StartedService(port=9, pid=other.pid, process_marker="0123456789abcdef", ready=True)},
        )
        assert services.running_services() is None
        assert services.stop_services() == []
        state.write_state(
            home,
            {"kafka": StartedService(port=9, pid=other.pid, process_marker="0123456789abcdef", ready=False)},
        )
        services.ensure_services(which=KAFKA)
        assert state.read_state(home)["kafka"].pid != other.pid
        assert services.stop_services() == ["kafka"]
        assert other.poll() is None
        other.communicate(b"\n")


def test_a_port_asked_for_that_is_taken_is_an_error_with_its_number(home, processes_of):
    """A port asked for by number is never replaced by another one in silence."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"Port {port} for Kafka is taken by another program"):
            services.ensure_services(which=KAFKA, kafka_port=port)
    assert not processes_of(home)


def test_no_service_is_started_when_the_port_of_another_is_taken(home):
    """Ports are looked at before anything is started: half of what was asked for helps nobody."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTakenError):
            services.ensure_services(kafka_port=port)
    assert not (home / "logs" / "spark.log").exists()


def test_a_broker_that_ends_shows_the_end_of_its_log(home, processes_of):
    """The error names the log and shows its end: the reason is on the screen, not only in a file."""
    state.create_home(home)
    data = home / "kafka" / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text("version=1\ncluster.id=broken\nnode.id=7\n")
    with pytest.raises(
        ServiceNotStartedError, match=r"(?s)ended with code 1.*kafka\.log ends with.*node id 7"
    ):
        services.ensure_services(which=KAFKA)
    assert not processes_of(home)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_start_that_is_cut_off_leaves_nothing_behind_for_good(home, processes_of, how):
    """Ctrl-C ends the half-started broker; after SIGKILL, which nobody survives, the next command does."""
    # a shell's background jobs, this test run for one, are born with SIGINT ignored
    terminal = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    with subprocess.Popen(python(terminal + ENSURE), stderr=subprocess.DEVNULL) as starting:
        wait_for(lambda: state.read_state(home) and processes_of(home))
        assert not state.read_state(home)["kafka"].ready
        starting.send_signal(how)
    if how is signal.SIGKILL:
        assert services.stop_services() == ["kafka"]
    assert not processes_of(home)


def test_what_runs_is_found_without_heavy_imports_and_on_its_own_port_only(home):
    """A second ensure() needs neither confluent_kafka nor pyspark, and refuses to move a shared broker."""
    port = int(services.ensure_services(which=KAFKA).bootstrap_servers.partition(":")[2])
    heavy = "import sys; print({'confluent_kafka', 'pyspark'} & set(sys.modules))"
    assert subprocess.check_output(python(ENSURE + heavy), text=True).strip() == "set()"
    with pytest.raises(InvalidSettingError, match=f"already runs on {port}"):
        services.ensure_services(which=KAFKA, kafka_port=port + 1)


def test_nobody_else_can_read_the_token(home):
    """The state file is its owner's, whatever the umask, and the token is in no repr."""
    state.create_home(home)
    former = os.umask(0)
    try:
        state.write_state(home, {"spark": StartedService(port=9, token="secret")})
    finally:
        os.umask(former)
    assert (home / "services.json").stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == 0o700
    assert "secret" not in repr(state.read_state(home))
    assert "secret" not in repr(services.Services("", "sc://localhost:9/;token=secret", "", warehouse=""))


def _contents(folder):
    """Each file of a folder with its text, and each folder, with modes."""
    found = {".": folder.stat().st_mode}
    for path in sorted(folder.rglob("*")):
        found[str(path.relative_to(folder))] = (
            path.stat().st_mode,
            path.read_bytes() if path.is_file() else None,
        )
    return found


def test_a_folder_that_was_there_before_keeps_its_files_and_its_mode(home):
    """`KAFKA_LIVENESS_HOME` may name a checkout; what others may not see of it is private by itself."""
    (home / "src").mkdir(parents=True)
    (home / ".gitignore").write_text("*.pyc\n")
    (home / "src" / "orders.py").write_text("orders = 1\n")
    home.chmod(0o755)
    before = _contents(home)
    services.ensure_services(which=KAFKA)
    after = _contents(home)
    assert {name: after[name] for name in before} == before
    state.create_home(home)
    assert _contents(home)["."] == before["."], "nor later, when it is known to hold the services"
    created = [path for path in home.iterdir() if path.name not in before]
    assert {path.name for path in created} >= {"kafka", "services.json", "services.lock", "catalog.db"}
    assert [path.name for path in created if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize("name", ["kafka", "spark", "logs", "warehouse", "catalog.db"])
def test_a_folder_with_a_kafka_or_spark_of_the_users_is_refused(home, name):
    """/opt may hold /opt/kafka: a start empties the data folder of a broker that was not formatted."""
    data = home / name / "data"
    data.mkdir(parents=True)
    (data / "orders").write_text("of the user's\n")
    before = _contents(home)
    with pytest.raises(InvalidSettingError, match=rf"{home} holds {name}, which this package did not create"):
        services.ensure_services(which=KAFKA)
    assert _contents(home) == before


def test_only_a_state_folder_is_removed(home):
    """The demo begins with an empty `demo` in the state folder, which may be a checkout with a `demo`."""
    (home / "demo").mkdir(parents=True)
    (home / "demo" / "orders.py").write_text("orders = 1\n")
    with pytest.raises(
        InvalidSettingError, match=r"demo holds orders\.py, which this package did not create"
    ):
        state.remove_home(home / "demo")
    assert (home / "demo" / "orders.py").exists()
    (home / "demo" / "orders.py").unlink()
    state.remove_home(home / "demo")
    state.create_home(home)
    state.remove_home(home)
    assert not home.exists()


def test_a_folder_in_which_every_user_may_write_is_refused(home):
    """Another user could put the settings of a Spark in place, which is code that runs as this user."""
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(InvalidSettingError, match=r"every user of this machine may write"):
        services.ensure_services(which=KAFKA)
    assert list(home.iterdir()) == []


def test_an_unknown_service_is_refused(home):
    """A misspelt name is an error, not a service that is silently not started."""
    with pytest.raises(InvalidSettingError, match=r"no embedded service is called \['kafak'\]"):
        services.ensure_services(which=("kafak",))


@pytest.mark.parametrize(
    ("which", "message"),
    [
        pytest.param(
            "kafka", r"The storage of Kafka was not formatted in 0\.02 s", id="its storage is formatted"
        ),
        pytest.param(
            "spark", r"Spark Connect did not respond on port \d+ in 0\.02 s", id="it does not answer"
        ),
    ],
)
def test_who_sets_the_limit_of_a_start_is_told_so_when_it_passes(
    home, processes_of, monkeypatch, which, message
):
    """A start that takes too long says how long it may take, what sets that, and where its log is.

    Nothing runs on.
    """
    monkeypatch.setenv("KAFKA_LIVENESS_START_SECONDS", "0.02")
    with pytest.raises(
        ServiceNotStartedError, match=rf"(?s){message}.*KAFKA_LIVENESS_START_SECONDS.*\.log ends with"
    ):
        services.ensure_services(which=(which,))
    assert not processes_of(home)


@pytest.mark.parametrize("seconds", ["soon", "0", "-5", "nan", "inf", "5 s"])
def test_a_limit_that_is_none_is_refused_before_anything_is_made(home, monkeypatch, seconds):
    """A mistyped limit is told with the value and what was wanted, not taken for no limit."""
    monkeypatch.setenv("KAFKA_LIVENESS_START_SECONDS", seconds)
    with pytest.raises(
        InvalidSettingError, match=f"KAFKA_LIVENESS_START_SECONDS is '{seconds}': wanted a number"
    ):
        services.ensure_services(which=KAFKA)
    assert not home.exists()


def test_a_state_folder_that_cannot_be_made_is_told_with_the_other_way(tmp_path):
    """No rights, a full disk, a file where a folder should be.

    An error with the folder and the variable, no trace.
    """
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ServiceNotStartedError, match=r"services of .*file/state could not .*KAFKA_LIVENESS_HOME"
    ):
        services.ensure_services(which=KAFKA, home=tmp_path / "file" / "state")
