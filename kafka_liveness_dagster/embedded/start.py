"""How do services start together? Each is noted before anybody waits for it, and all are waited for at once.

Runs under the lock of the state folder. If this process is killed meanwhile, the next start finds what it left in
the state file and ends it; if it is interrupted, it ends it itself.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import psutil

from kafka_liveness_dagster.embedded import broker, process, spark_connect, state
from kafka_liveness_dagster.embedded.errors import PortTakenError, ServiceNotStartedError
from kafka_liveness_dagster.embedded.ports import answers, free_port, is_free
from kafka_liveness_dagster.embedded.state import Started

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path
    from subprocess import Popen

TITLES = {"kafka": "Kafka", "spark": "Spark Connect"}
_LOOK_AGAIN_SECONDS = 0.05
_MORE = f"a machine that is slow or busy needs more, set {process.START_SECONDS}"


@dataclass(frozen=True)
class Start:
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
    show: Callable[[str], None]
    _children: dict[str, Popen[bytes]] = field(default_factory=dict)

    def run(self, names: Collection[str]) -> None:
        """Start them and return when they answer; on any exception those that do not answer yet are ended."""
        try:
            planned = {name: self._plan(name) for name in sorted(names, reverse=True)}
            for name, one in planned.items():  # Spark first: Kafka may have to format its storage
                self._start(name, one)
            self._wait()
        except BaseException:
            process.end(psutil.Process(child.pid) for child in self._children.values() if child.poll() is None)
            raise

    def _plan(self, name: str) -> Started:
        """Settle the port before anything is started, and end what is there but does not answer."""
        former = state.read(self.home).get(name)
        if former and (deaf := process.find(former.pid, former.process_marker, state.folder_of(self.home, name))):
            process.end([deaf])
        return Started(
            port=_port(name, self.ports.get(name), former),
            process_marker=secrets.token_hex(8),
            token=former.token if former else secrets.token_urlsafe(24),
        )

    def _start(self, name: str, one: Started) -> None:
        launch = self._launch(name, one)
        self.show(f"starting {TITLES[name]}")
        child = self._children[name] = process.start(launch, self._log(name))
        self._note(name, replace(one, pid=child.pid))

    def _launch(self, name: str, one: Started) -> process.Launch:
        if name == "kafka":
            return broker.launch(self.home, one.port, one.process_marker, self.show)
        return spark_connect.launch(
            self.home, one.port, one.token, one.process_marker, self.show, cores=self.spark_cores
        )

    def _wait(self) -> None:
        seconds = process.start_seconds()
        deadline = time.monotonic() + seconds
        while self._children:
            for name, child in tuple(self._children.items()):
                one = state.read(self.home)[name]
                if (code := child.poll()) is not None:
                    raise self._failed(name, f"ended with code {code}")
                if (broker.is_ready if name == "kafka" else answers)(one.port):
                    self._note(name, replace(one, ready=True))
                    del self._children[name]
                elif time.monotonic() > deadline:
                    raise self._failed(name, f"did not answer on port {one.port} in {seconds:g} s: {_MORE}")
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _note(self, name: str, one: Started) -> None:
        state.write(self.home, state.read(self.home) | {name: one})

    def _log(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    def _failed(self, name: str, what: str) -> ServiceNotStartedError:
        log = self._log(name)
        return ServiceNotStartedError(
            f"{TITLES[name]} {what}. `kafka-liveness doctor` looks for the cause. {log} ends with:\n"
            f"{process.last_lines(log)}"
        )


def _port(name: str, asked: int | None, former: Started | None) -> int:
    """The port asked for, or the former one, so that clients find the service again, or a free one."""
    if asked is not None and not is_free(asked):
        raise PortTakenError(
            f"port {asked} for {TITLES[name]} is taken by another program: end that one, ask for another port, or "
            f"for none to get a free one"
        )
    if asked is None and former and is_free(former.port):
        return former.port
    return asked or free_port()
