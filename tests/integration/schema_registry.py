"""A real schema registry as a child process: Apicurio, with TLS, for those with its password alone."""

from __future__ import annotations

import os
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import trustme
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from kafka_liveness_dagster.embedded import jars, processes
from kafka_liveness_dagster.embedded.jars import find_java
from kafka_liveness_dagster.embedded.processes import LOOPBACK, free_port, is_listening
from tests.waiting import wait_for

USER, PASSWORD = "etl", "s3cr3t-of-the-registry"
_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class RunningRegistry(NamedTuple):
    """Where it is."""

    url: str
    authority: str

    def client(self):
        """Confluent's own, as producers have it."""
        told = {
            "url": self.url,
            "ssl.ca.location": self.authority,
            "basic.auth.user.info": f"{USER}:{PASSWORD}",
        }
        return SchemaRegistryClient(told)

    def register(self, subject, text, kind, references=()):
        """A schema's id.

        Not looked for in the client's cache, which knows nothing of a subject's compatibility.
        """
        return self.client().register_schema(subject, Schema(text, kind, list(references)))


@contextmanager
def started(folder):
    """The registry, for as long as the block lasts, however it ends."""
    [archive] = _archive().glob("*.zip")
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    authority = trustme.CA()
    own = authority.issue_cert(LOOPBACK)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    own.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "cert.pem").write_bytes(b"".join(pem.bytes() for pem in own.cert_chain_pems))
    port = free_port()
    launch = processes.Launch(_command(folder, port), folder, dict(os.environ))
    child = processes.start_process(launch, folder / "registry.log")
    try:
        _wait(child, port, folder)
        yield RunningRegistry(f"https://{LOOPBACK}:{port}/apis/ccompat/v7", str(folder / "ca.pem"))
    finally:
        if child.poll() is None:
            processes.end_processes([psutil.Process(child.pid)])


def _command(folder, port):
    users, http = "quarkus.security.users.embedded", "quarkus.http"
    settings = {
        f"{http}.host": LOOPBACK,
        f"{http}.insecure-requests": "disabled",
        f"{http}.ssl-port": port,
        f"{http}.ssl.certificate.files": "cert.pem",
        f"{http}.ssl.certificate.key-files": "key.pem",
        f"{http}.auth.basic": "true",
        f"{http}.auth.permission.all.paths": "/apis/*",
        f"{http}.auth.permission.all.policy": "authenticated",
        f"{users}.plain-text": "true",
        f"{users}.users.{USER}": PASSWORD,
        f"{users}.roles.{USER}": "sr-admin",
        "quarkus.oidc.tenant-enabled": "false",
        "quarkus.log.level": "WARN",
    }
    [jar] = folder.glob("apicurio-registry-app-*-runner.jar")
    return (
        str(find_java()),
        *_OPTIONS,
        *(f"-D{name}={value}" for name, value in settings.items()),
        "-jar",
        str(jar),
    )


def _wait(child, port, folder):
    log = folder / "registry.log"

    def is_up():
        assert child.poll() is None, processes.last_lines(log)
        return is_listening(port)

    wait_for(is_up, what="the registry answers", details=lambda: processes.last_lines(log), pause=0.05)


def _archive():
    here = Path(__file__).parent
    jars.MODULES.setdefault("registry", here / "ivy-registry.xml")
    with pytest.MonkeyPatch.context() as patch:
        if "KAFKA_LIVENESS_IVY_SETTINGS" not in os.environ:  # of a mirror
            patch.setenv("KAFKA_LIVENESS_IVY_SETTINGS", str(here / "ivysettings-registry.xml"))
        return jars.resolve_jars("registry")
