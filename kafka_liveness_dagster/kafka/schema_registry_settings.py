"""Settings of the schema registry: address, login and trusted authority. Imports no client.

>>> RegistrySettings("https://registry.example:8081", "etl", "secret")
RegistrySettings(url='https://registry.example:8081', username='etl', ssl_ca_location=None)
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import REGISTRY, VALUE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RETRY_SETTINGS = {"timeout": 5, "max.retries": 2, "retries.wait.ms": 200, "retries.max.wait.ms": 1_000}
"""Limits for each of connecting, sending and reading; by default the client waits indefinitely."""


@dataclass(frozen=True)
class RegistrySettings:
    """The address of a schema registry, and the login.

    Raises:
        InvalidSettingError: settings that contradict each other, or a file without a certificate.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl_ca_location: str | None = None

    def __post_init__(self) -> None:
        if wrong := [*_find_invalid(self), *find_contradictions(vars(self))]:
            raise InvalidSettingError("\n".join(f"{one} (SchemaRegistryResource)" for one in wrong))
        if self.ssl_ca_location:
            _check_authority(self.ssl_ca_location)

    def client_config(self) -> dict[str, Any]:
        """Return the settings of Confluent's client."""
        told: dict[str, Any] = {"url": self.url, **RETRY_SETTINGS}
        if self.username:
            told["basic.auth.user.info"] = f"{self.username}:{self.password}"
        if self.ssl_ca_location:
            told["ssl.ca.location"] = self.ssl_ca_location
        return told


def find_contradictions(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each contradiction between these settings; no message contains a secret."""
    if bool(given["username"]) != bool(given["password"]):
        yield "username and password belong together: set both, or neither"
    if given["ssl_ca_location"] and "https://" not in given["url"]:
        yield "ssl_ca_location would not be used: url begins with http://, not https://"
    if ":" in (given["username"] or ""):
        yield "username has a ':', which would begin the password (RFC 7617): use a username without one"


def _find_invalid(settings: RegistrySettings) -> Iterator[str]:
    if not REGISTRY.matches(settings.url):
        yield f"url is refused: wanted {REGISTRY.description}"
    for name in ("username", "password", "ssl_ca_location"):
        if not VALUE.matches(getattr(settings, name) or ""):
            yield f"{name} is refused: wanted {VALUE.description}"


def _check_authority(file: str) -> None:
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:  # ssl.SSLError is a subclass
        why = (
            "holds no PEM certificate"
            if isinstance(error, ssl.SSLError)
            else f"cannot be read ({error.strerror})"
        )
        raise InvalidSettingError(
            f"ssl_ca_location={file} {why}: it must be a PEM file on the machines where runs work"
        ) from None
