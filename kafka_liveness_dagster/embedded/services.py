"""Start the embedded services, at most once per state folder, and show their progress.

Progress is always on standard error: standard output belongs to ``up --json``.

The state folder is ``KAFKA_LIVENESS_HOME`` or ``.kafka_liveness`` in the current folder. What it holds
(topics, committed offsets, tables) survives `stop`; the services survive the process that started them.

A start runs under the lock of the state folder. If this process is killed meanwhile, the next start finds
what it left in the state file and ends it; if it is interrupted, it ends it itself.
"""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING

import psutil
from filelock import FileLock, Timeout
from rich.console import Console

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.embedded import kafka, processes, spark, state
from kafka_liveness_dagster.embedded.processes import LOOPBACK, free_port, is_free, is_listening
from kafka_liveness_dagster.embedded.spark import CATALOG
from kafka_liveness_dagster.embedded.state import (
    PortTakenError,
    ServiceNotStartedError,
    ServicesDownError,
    StartedService,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path
    from subprocess import Popen


@contextmanager
def show_progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is done now; it prints nothing when it is told nothing."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _lines_once(console)
        return
    with console.status("starting") as status:
        yield status.update


def _lines_once(console: Console) -> Callable[[str], None]:
    """Lines without their counters, so that a log gets one line per step and not per jar."""
    shown: set[str] = set()

    def show(text: str) -> None:
        step = text.partition(" (")[0]
        if step not in shown:
            shown.add(step)
            console.print(step, markup=False, soft_wrap=True)

    return show


_NAMES = ("kafka", "spark")
LOCK_TIMEOUT_SECONDS = 780.0
"""For downloads, beside what a start may take."""


@dataclass(frozen=True)
class Services:
    """Addresses of the embedded services, as their clients want them."""

    bootstrap_servers: str
    """Kafka's ``host:port``; empty when it does not run."""
    spark_remote: str = field(repr=False)
    """``sc://localhost:PORT/;token=…``, a secret; empty when Spark does not run."""
    catalog_uri: str
    """The Iceberg catalog's database for pyiceberg's ``SqlCatalog``: ``sqlite:////…``."""
    _: KW_ONLY
    warehouse: str
    """Folder of the tables, an absolute path."""
    catalog_name: str = CATALOG
    """What the catalog is called in its database: who opens it by another name finds no table."""


def ensure_services(
    *,
    kafka_port: int | None = None,
    spark_port: int | None = None,
    home: Path | None = None,
    which: Collection[str] = _NAMES,
    spark_cores: int = 2,
    even_if_down: bool = False,
) -> Services:
    """Start what does not run and return when it answers; milliseconds when all of it runs.

    Args:
        kafka_port: the broker's port; else the one it had before, else a free one.
        spark_port: the same for Spark Connect.
        home: the state folder, when it is not the default one.
        which: ``kafka``, ``spark`` or both.
        spark_cores: how many tasks Spark runs at once, when it is started now.
        even_if_down: start services that `kafka-liveness down` stopped, too, as `kafka-liveness up` does.
            From then on every caller may start them.

    Raises:
        ServicesDownError: `kafka-liveness down` stopped the services.
        PortTakenError: another program listens on a port asked for by number.
        InvalidSettingError: a service already runs on another port than the one asked for, or has another
            name.
        ServiceNotStartedError: a service ended or did not answer in 120 s (``KAFKA_LIVENESS_START_SECONDS``);
            shows the end of its log. Or the state folder cannot be written.
        JavaNotFoundError, JarsError: what the services are made of is missing.
    """
    home = state.home_folder(home)
    ports = {"kafka": kafka_port, "spark": spark_port}
    if _find_missing(home, which, ports) or (even_if_down and state.is_down(home)):
        _start_missing(home, which, ports, spark_cores=spark_cores, even_if_down=even_if_down)
    return _addresses(home)


def running_services(home: Path | None = None) -> Services | None:
    """The services that run now; None when none does."""
    home = state.home_folder(home)
    return _addresses(home) if any(_is_up(home, *named) for named in state.read_state(home).items()) else None


def stop_services(home: Path | None = None, *, until_up: bool = False) -> list[str]:
    """End the services: SIGTERM, and SIGKILL after 15 s.

    Args:
        home: the state folder, when it is not the default one.
        until_up: leave a marker, so that only ``ensure_services(even_if_down=True)`` starts them again. A
            folder in which no service was ever started gets none.

    Returns:
        The names of those that ran. Their topics, offsets and tables stay.
    """
    home = state.home_folder(home)
    if not state.read_state(home) and not (home / state.LOCK).exists():
        return []
    # A first start notes nothing while jars are downloaded: only its lock is there
    with _locked_state(home):
        started = state.read_state(home)
        found = {name: _find_service(home, name, one) for name, one in started.items()}
        try:
            if until_up and started:
                state.mark_down(home, down=True)  # first: Ctrl-C may come while they end
        finally:
            processes.end_processes(one for one in found.values() if one)
        state.write_state(home, {name: replace(one, pid=None, ready=False) for name, one in started.items()})
    return [name for name, one in found.items() if one]


def mark_for_restart(spark: StartedService, home: Path | None = None) -> None:
    """Let the next start end this Spark and start another: it answers, and can run no job.

    Where another process has restarted Spark meanwhile, nothing changes.
    """
    home = state.home_folder(home)
    with _locked_state(home):
        if (started := state.read_state(home)).get("spark") == spark:
            state.write_state(home, started | {"spark": replace(spark, ready=False)})


def _start_missing(
    home: Path,
    which: Collection[str],
    ports: Mapping[str, int | None],
    spark_cores: int,
    *,
    even_if_down: bool,
) -> None:

    processes.start_seconds()  # a limit that is none is told before anything is made
    if not even_if_down:
        _check_not_down(home)  # before waiting for the lock, which a start may hold for minutes
    try:
        state.create_home(home)
        with _locked_state(home):
            if even_if_down:
                state.mark_down(home, down=False)
            _check_not_down(home)
            missing = _find_missing(home, which, ports)  # another process may just have started them
            if missing:
                with show_progress() as show:
                    ServiceStarter(home, ports, spark_cores, show=show).run(missing)
    except OSError as error:
        raise ServiceNotStartedError(
            f"the services of {home} could not be started ({error}): give this user the folder and room on "
            "its disk, or set KAFKA_LIVENESS_HOME to another one"
        ) from error


def _check_not_down(home: Path) -> None:
    if state.is_down(home):
        raise ServicesDownError(
            f"The embedded services of {home} were stopped by `kafka-liveness down`. Nothing was started. "
            "Fix: run `kafka-liveness up`; from another folder, set KAFKA_LIVENESS_HOME to the one that is "
            "named here."
        )


def _find_missing(home: Path, which: Collection[str], ports: Mapping[str, int | None]) -> list[str]:
    if unknown := set(which) - set(_NAMES):
        raise InvalidSettingError(f"no embedded service is called {sorted(unknown)}: wanted some of {_NAMES}")
    started = state.read_state(home)
    up = {name: started[name] for name in which if name in started and _is_up(home, name, started[name])}
    for name, one in up.items():
        if ports[name] not in (None, one.port):
            raise InvalidSettingError(
                f"port {ports[name]} was asked for, but the {name} of {home} already runs on {one.port}: "
                "use that one, or run `kafka-liveness down` first"
            )
    return [name for name in which if name not in up]


def _is_up(home: Path, name: str, one: StartedService) -> bool:
    return one.ready and _find_service(home, name, one) is not None and is_listening(one.port)


def _find_service(home: Path, name: str, one: StartedService) -> psutil.Process | None:
    return processes.find_process(one.pid, one.process_marker, state.folder_of(home, name))


def _addresses(home: Path) -> Services:
    up = {name: one for name, one in state.read_state(home).items() if _is_up(home, name, one)}
    kafka = up.get("kafka")
    spark = up.get("spark")
    return Services(
        bootstrap_servers=f"{LOOPBACK}:{kafka.port}" if kafka else "",
        # not 127.0.0.1: pyspark sends a token without TLS to this name only
        spark_remote=f"sc://localhost:{spark.port}/;token={spark.token}" if spark else "",
        catalog_uri=f"sqlite:///{home}/catalog.db",
        warehouse=f"{home}/warehouse",
    )


@contextmanager
def _locked_state(home: Path) -> Iterator[None]:
    seconds = LOCK_TIMEOUT_SECONDS + processes.start_seconds()
    try:
        with FileLock(home / state.LOCK, timeout=seconds):
            yield
    except Timeout:
        raise ServiceNotStartedError(
            f"another process has been starting or stopping the services of {home} for {seconds:.0f} s: end "
            f"it, or set KAFKA_LIVENESS_HOME to another folder"
        ) from None


TITLES = {"kafka": "Kafka", "spark": "Spark Connect"}
_POLL_SECONDS = 0.05
_SLOW_MACHINE_HINT = f"a machine that is slow or busy needs more, set {processes.START_SECONDS}"


@dataclass(frozen=True)
class ServiceStarter:
    """One start of some services of one state folder.

    Attributes:
        home: the state folder.
        ports: those asked for by number.
        spark_cores: how many tasks Spark runs at once.
        show: told what is being done.
    """

    home: Path
    ports: Mapping[str, int | None]
    spark_cores: int
    _: KW_ONLY
    show: Callable[[str], None]
    _children: dict[str, Popen[bytes]] = field(default_factory=dict)

    def run(self, names: Collection[str]) -> None:
        """Start them and return when they answer; on any exception those that do not answer yet are ended."""
        try:
            planned = {name: self._settle_port(name) for name in sorted(names, reverse=True)}
            for name, one in planned.items():  # Spark first: Kafka may have to format its storage
                self._start(name, one)
            self._wait()
        except BaseException:
            processes.end_processes(
                psutil.Process(child.pid) for child in self._children.values() if child.poll() is None
            )
            raise

    def _settle_port(self, name: str) -> StartedService:
        """Settle the port before anything is started, and end what is there but does not answer."""
        former = state.read_state(self.home).get(name)
        if former and (
            deaf := processes.find_process(
                former.pid, former.process_marker, state.folder_of(self.home, name)
            )
        ):
            processes.end_processes([deaf])
        return StartedService(
            port=_choose_port(name, self.ports.get(name), former),
            process_marker=secrets.token_hex(8),
            token=former.token if former else secrets.token_urlsafe(24),
        )

    def _start(self, name: str, one: StartedService) -> None:
        launch = self._launch(name, one)
        self.show(f"starting {TITLES[name]}")
        child = self._children[name] = processes.start_process(launch, self._log_file(name))
        self._save_state(name, replace(one, pid=child.pid))

    def _launch(self, name: str, one: StartedService) -> processes.Launch:
        if name == "kafka":
            return kafka.prepare_launch(self.home, one.port, one.process_marker, show=self.show)
        return spark.prepare_launch(
            self.home,
            one.port,
            one.token,
            process_marker=one.process_marker,
            show=self.show,
            cores=self.spark_cores,
        )

    def _wait(self) -> None:
        seconds = processes.start_seconds()
        deadline = time.monotonic() + seconds
        while self._children:
            for name, child in tuple(self._children.items()):
                one = state.read_state(self.home)[name]
                if (code := child.poll()) is not None:
                    raise self._not_started_error(name, f"ended with code {code}")
                if (kafka.is_broker_ready if name == "kafka" else is_listening)(one.port):
                    self._save_state(name, replace(one, ready=True))
                    del self._children[name]
                elif time.monotonic() > deadline:
                    raise self._not_started_error(
                        name, f"did not answer on port {one.port} in {seconds:g} s: {_SLOW_MACHINE_HINT}"
                    )
            time.sleep(_POLL_SECONDS)

    def _save_state(self, name: str, one: StartedService) -> None:
        state.write_state(self.home, state.read_state(self.home) | {name: one})

    def _log_file(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    def _not_started_error(self, name: str, what: str) -> ServiceNotStartedError:
        log = self._log_file(name)
        return ServiceNotStartedError(
            f"{TITLES[name]} {what}. `kafka-liveness doctor` looks for the cause. {log} ends with:\n"
            f"{processes.last_lines(log)}"
        )


def _choose_port(name: str, asked: int | None, former: StartedService | None) -> int:
    """The port asked for, or the former one, so that clients find the service again, or a free one."""
    if asked is not None and not is_free(asked):
        raise PortTakenError(
            f"port {asked} for {TITLES[name]} is taken by another program: end that one, ask for another "
            "port, or for none to get a free one"
        )
    if asked is None and former and is_free(former.port):
        return former.port
    return asked or free_port()
