"""Declare and check the settings of a schema registry. Sends it no request."""

# No `from __future__ import annotations` here: pydantic reads the annotations.

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from kafka_liveness_dagster.kafka.schema_registry_settings import find_contradictions
from kafka_liveness_dagster.settings import types
from kafka_liveness_dagster.settings.types import ENV_VARS
from kafka_liveness_dagster.settings.validation import ValidatedSettings


class SchemaRegistrySettings(ValidatedSettings):
    """The fields of :class:`SchemaRegistryResource`."""

    title: ClassVar[str] = "SchemaRegistryResource"

    url: types.Registry = Field(repr=False)  # a refused address may contain a password
    username: types.Text | None
    password: types.Text | None = Field(repr=False)
    ssl_ca_location: types.Text | None

    def contradictions(self) -> Iterator[str]:
        """Yield an error for each contradiction. The value of a variable is known only in a run."""
        known = {"url": "https://", "username": "set", "password": "set", "ssl_ca_location": "set"}
        yield from find_contradictions(
            {name: known.get(name) if isinstance(one, ENV_VARS) else one for name, one in self}
        )
