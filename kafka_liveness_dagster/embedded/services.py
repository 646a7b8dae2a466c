"""Start the embedded services, at most once per state folder, and show their progress.

Progress is always on standard error: standard output belongs to ``up --json``.

The state folder is ``KAFKA_LIVENESS_HOME`` or ``.kafka_liveness`` in the current folder. Its topics,
committed offsets and tables survive `stop_services`. The services survive the process that started them.

A start holds the lock of the state folder. An interrupted start ends its services. If the starting process is
killed, the next start finds its services in the state file and ends them.
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
    """Yield a function that shows the current step; without a call of it nothing is printed."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _lines_once(console)
        return
    with console.status("starting") as status:
        yield status.update


def _lines_once(console: Console) -> Callable[[str], None]:
    """Return a function that prints each step once, without counters: a log gets no line per jar."""
    shown: set[str] = set()

    def show(text: str) -> None:
        step = text.partition(" (")[0]
        if step not in shown:
            shown.add(step)
            console.print(step, markup=False, soft_wrap=True)

    return show


_NAMES = ("kafka", "spark")
LOCK_TIMEOUT_SECONDS = 780.0
"""The time limit for downloads, in addition to the time limit of a start."""


@dataclass(frozen=True)
class Services:
    """The addresses of the embedded services, in the form that their clients take."""

    bootstrap_servers: str
    """Kafka's ``host:port``; empty if Kafka does not run."""
    spark_remote: str = field(repr=False)
    """``sc://localhost:PORT/;token=…``, a secret; empty if Spark does not run."""
    catalog_uri: str
    """The Iceberg catalog's database for pyiceberg's ``SqlCatalog``: ``sqlite:////…``."""
    _: KW_ONLY
    warehouse: str
    """Folder of the tables, an absolute path."""
    catalog_name: str = CATALOG
    """The name of the catalog in its database; under another name a client finds no table."""


def ensure_services(
    *,
    kafka_port: int | None = None,
    spark_port: int | None = None,
    home: Path | None = None,
    which: Collection[str] = _NAMES,
    spark_cores: int = 2,
    even_if_down: bool = False,
) -> Services:
    """Start the services that do not run, and return when all respond; takes milliseconds if all run.

    Args:
        kafka_port: the broker's port; by default its former one, else a free one.
        spark_port: the same for Spark Connect.
        home: the state folder, if not the default one.
        which: ``kafka``, ``spark`` or both.
        spark_cores: the number of tasks that Spark runs at once, if this call starts it.
        even_if_down: also start services that `kafka-liveness down` stopped, as `kafka-liveness up` does.
            From then on every caller may start them.

    Raises:
        ServicesDownError: `kafka-liveness down` stopped the services.
        PortTakenError: another program listens on a requested port.
        InvalidSettingError: a service already runs on another port than the requested one, or ``which`` has
            an unknown name.
        ServiceNotStartedError: a service ended, or did not respond in 120 s
            (``KAFKA_LIVENESS_START_SECONDS``); the message has the end of its log. Or the state folder
            cannot be written.
        JavaNotFoundError, JarsError: Java or the jars of the services are missing.
    """
    home = state.home_folder(home)
    ports = {"kafka": kafka_port, "spark": spark_port}
    if _find_missing(home, which, ports) or (even_if_down and state.is_down(home)):
        _start_missing(home, which, ports, spark_cores=spark_cores, even_if_down=even_if_down)
    return _addresses(home)


def running_services(home: Path | None = None) -> Services | None:
    """Return the addresses of the services that run now; None if none runs."""
    home = state.home_folder(home)
    return _addresses(home) if any(_is_up(home, *named) for named in state.read_state(home).items()) else None


def stop_services(home: Path | None = None, *, until_up: bool = False) -> list[str]:
    """End the services: SIGTERM, and SIGKILL after 15 s.

    Args:
        home: the state folder, if not the default one.
        until_up: leave a marker, so that only ``ensure_services(even_if_down=True)`` starts them again. A
            folder in which no service was ever started gets none.

    Returns:
        The names of the services that ran. Their topics, offsets and tables stay.
    """
    home = state.home_folder(home)
    if not state.read_state(home) and not (home / state.LOCK).exists():
        return []
    # While a first start downloads jars, only its lock shows it: the state file does not exist yet
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
    """Make the next start replace this Spark, which responds but can run no job.

    If another process has restarted Spark meanwhile, nothing changes.
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
    processes.start_seconds()  # raises for an invalid limit, before anything is created
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
            f"The services of {home} could not be started ({error}). Fix: make the folder writable for this "
            "user and free space on its disk, or set KAFKA_LIVENESS_HOME to another folder"
        ) from error


def _check_not_down(home: Path) -> None:
    if state.is_down(home):
        raise ServicesDownError(
            f"The embedded services of {home} were stopped by `kafka-liveness down`. Nothing was started. "
            "Fix: run `kafka-liveness up`; from another current folder, set KAFKA_LIVENESS_HOME to the "
            "folder above."
        )


def _find_missing(home: Path, which: Collection[str], ports: Mapping[str, int | None]) -> list[str]:
    if unknown := set(which) - set(_NAMES):
        raise InvalidSettingError(f"no embedded service is called {sorted(unknown)}: wanted some of {_NAMES}")
    started = state.read_state(home)
    up = {name: started[name] for name in which if name in started and _is_up(home, name, started[name])}
    for name, one in up.items():
        if ports[name] not in (None, one.port):
            raise InvalidSettingError(
                f"Port {ports[name]} was requested, but the {name} of {home} already runs on {one.port}. "
                "Fix: use that port, or run `kafka-liveness down` first"
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
            f"Another process has been starting or stopping the services of {home} for {seconds:.0f} s. "
            f"Fix: end that process, or set KAFKA_LIVENESS_HOME to another folder"
        ) from None


TITLES = {"kafka": "Kafka", "spark": "Spark Connect"}
_POLL_SECONDS = 0.05
_SLOW_MACHINE_HINT = f"A slow or busy machine needs more time: set {processes.START_SECONDS}"


@dataclass(frozen=True)
class ServiceStarter:
    """One start of some services of one state folder.

    Attributes:
        home: the state folder.
        ports: the requested ports by service; None for any port.
        spark_cores: the number of tasks that Spark runs at once.
        show: called with each step as text.
    """

    home: Path
    ports: Mapping[str, int | None]
    spark_cores: int
    _: KW_ONLY
    show: Callable[[str], None]
    _children: dict[str, Popen[bytes]] = field(default_factory=dict)

    def run(self, names: Collection[str]) -> None:
        """Start the services and return when all respond.

        On an exception, end those that do not respond yet.
        """
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
        """Settle the port before anything is started; end a former process that does not respond."""
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
                        name, f"did not respond on port {one.port} in {seconds:g} s. {_SLOW_MACHINE_HINT}"
                    )
            time.sleep(_POLL_SECONDS)

    def _save_state(self, name: str, one: StartedService) -> None:
        state.write_state(self.home, state.read_state(self.home) | {name: one})

    def _log_file(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    def _not_started_error(self, name: str, what: str) -> ServiceNotStartedError:
        log = self._log_file(name)
        return ServiceNotStartedError(
            f"{TITLES[name]} {what}. Fix: run `kafka-liveness doctor` to find the cause. {log} ends with:\n"
            f"{processes.last_lines(log)}"
        )


def _choose_port(name: str, asked: int | None, former: StartedService | None) -> int:
    """Return the requested port, else the former one, which clients know, else a free one."""
    if asked is not None and not is_free(asked):
        raise PortTakenError(
            f"Port {asked} for {TITLES[name]} is taken by another program. Nothing was started. Fix: end "
            "that program, or request another port, or none to get a free one"
        )
    if asked is None and former and is_free(former.port):
        return former.port
    return asked or free_port()
