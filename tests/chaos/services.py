"""A real broker and a real Spark Connect server, each behind a proxy that can fall silent; both are killable.

Their state is in a folder of its own. Who harasses them, feeds and judges, does so without the proxies.
"""

from __future__ import annotations

import re
import signal
from dataclasses import replace

import psutil

from kafka_liveness_dagster.embedded import kafka, processes, services, state
from kafka_liveness_dagster.embedded.processes import LOOPBACK, free_port
from tests.integration.silent_proxy import SilentProxy
from tests.waiting import wait_for


class Broker:
    """One broker with two listeners: one for us, and one whose advertised address is the proxy's."""

    def __init__(self, home):
        self._home, self._child = home, None
        self.port, self._behind = free_port(), free_port()
        self.proxy = SilentProxy(self._behind)

    def start(self):
        """Start it where it was, and wait until it answers."""
        mark = f"chaos-{self.port}"
        launch = kafka.prepare_launch(self._home, self.port, mark, lambda _: None)
        settings = self._home / "kafka" / "server.properties"
        text = settings.read_text()
        for name, address in (("listeners", self._behind), ("advertised.listeners", self.proxy.port)):
            text = re.sub(
                rf"^({name}=.*)$", rf"\1,PROXIED://{LOOPBACK}:{address}", text, count=1, flags=re.MULTILINE
            )
        text = text.replace("BROKER:PLAINTEXT", "BROKER:PLAINTEXT,PROXIED:PLAINTEXT")
        settings.write_text(text)
        self._child = processes.start_process(launch, self._home / "logs" / "kafka.log")

        def is_up():
            if self._child.poll() is not None:
                raise RuntimeError(f"the broker did not start: see {self._home / 'logs' / 'kafka.log'}")
            return kafka.is_broker_ready(self.port)

        wait_for(is_up, what="the broker answers", pause=0.1)

    def end(self, how=signal.SIGKILL):
        """SIGKILL, or SIGTERM: in good order."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(how)
            self._child.wait()


class Spark:
    """The embedded Spark Connect server."""

    def __init__(self, home):
        self._home = home
        self.start()
        found = services.running_services(home)
        port = int(re.search(r":(\d+)/", found.spark_remote)[1])
        self.direct, self.proxy = found, SilentProxy(port)
        self.remote = found.spark_remote.replace(f":{port}/", f":{self.proxy.port}/")

    def start(self):
        """Start it where it was, and wait until it answers."""
        services.ensure_services(home=self._home, which=("spark",))

    def kill(self):
        """SIGKILL of what was started here."""
        one = state.read_state(self._home)["spark"]
        found = processes.find_process(one.pid, one.process_marker, state.folder_of(self._home, "spark"))
        if found is not None:
            found.kill()
            psutil.wait_procs([found], timeout=10)


def addresses(broker, spark, *, proxied):
    """Where the services are, for the pipeline or for its judges."""
    if proxied:
        return replace(
            spark.direct, bootstrap_servers=f"{LOOPBACK}:{broker.proxy.port}", spark_remote=spark.remote
        )
    return replace(spark.direct, bootstrap_servers=f"{LOOPBACK}:{broker.port}")
