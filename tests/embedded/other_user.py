"""Another user of this machine, who speaks Spark's own RPC.

A JVM of theirs, with the jars that anyone can download.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil
from py4j.java_gateway import GatewayParameters, JavaGateway

from kafka_liveness_dagster.embedded.jars import find_java, pyspark_folder
from kafka_liveness_dagster.embedded.processes import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534
_OPENED = [  # as Spark's own launcher opens them for Java 17
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang",
        "java.lang.invoke",
        "java.io",
        "java.net",
        "java.nio",
        "java.util",
        "sun.nio.ch",
    )
]


def as_nobody() -> dict[str, Any]:
    """Arguments of ``subprocess`` that start a process of another user.

    Of this one where this one is not root.
    """
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def ports_of(pid: int) -> list[int]:
    """Where a process listens: every user reads that in /proc/net/tcp."""
    found = psutil.Process(pid).net_connections("tcp")
    return sorted({one.laddr.port for one in found if one.status == psutil.CONN_LISTEN})


@contextmanager
def java_of_nobody() -> Iterator[Any]:
    """A Java of another user with Spark's classes; what it is told to call, it calls."""
    command = [str(find_java()), *_OPENED, "-cp", f"{pyspark_folder()}/jars/*", "py4j.GatewayServer", "0"]
    with subprocess.Popen(
        command,
        cwd="/",
        env={"LANG": "C.UTF-8"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        **as_nobody(),
    ) as java:
        assert java.stdout is not None
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=int(java.stdout.readline())))
        try:
            yield gateway.jvm
        finally:
            gateway.close()
            java.kill()


def send_message(jvm: Any, port: int, endpoint: str, message: Any, secret: str | None = None) -> Any:
    """Send an object of Java's to an endpoint of the Spark that listens there.

    The receiver deserializes it.
    """
    rpc = _rpc(jvm, secret, listens=False)
    try:
        there = rpc.setupEndpointRef(jvm.org.apache.spark.rpc.RpcAddress(LOOPBACK, port), endpoint)
        return there.askSync(message, jvm.scala.reflect.ClassTag.Any())
    finally:
        rpc.shutdown()


@contextmanager
def unguarded(jvm: Any) -> Iterator[int]:
    """The port of a Spark RPC that asks for no secret, as a control."""
    rpc = _rpc(jvm, None, listens=True)
    try:
        yield rpc.address().port()
    finally:
        rpc.shutdown()


def constant(of: Any, name: str) -> Any:
    """The only object of a Scala ``object``, which is a message without a field."""
    return getattr(getattr(of, f"{name}$"), "MODULE$")


def _rpc(jvm: Any, secret: str | None, *, listens: bool) -> Any:
    spark = jvm.org.apache.spark
    conf = spark.SparkConf(False).set("spark.network.timeout", "10s").set("spark.rpc.askTimeout", "10s")
    if secret is not None:
        conf.set("spark.authenticate", "true").set("spark.authenticate.secret", secret)
    secret_file = getattr(constant(spark, "SecurityManager"), "$lessinit$greater$default$3")()
    manager = spark.SecurityManager(conf, jvm.scala.Option.empty(), secret_file)
    return spark.rpc.RpcEnv.create("stranger", LOOPBACK, LOOPBACK, 0, conf, manager, 0, not listens)
