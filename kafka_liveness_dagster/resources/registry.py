"""How does a transform reach a schema registry? A resource that it asks for, as for any other."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, PrivateAttr

from kafka_liveness_dagster.kafka.schema_registry_settings import RegistrySettings
from kafka_liveness_dagster.resources.kafka import ResourceWithSecrets
from kafka_liveness_dagster.settings.registry import SchemaRegistrySettings
from kafka_liveness_dagster.settings.validation import resolve_env_vars

if TYPE_CHECKING:
    import dagster as dg
    from pyspark.sql import DataFrame

    from kafka_liveness_dagster.kafka.schema_registry import SchemaRegistry

_FIELDS = tuple(SchemaRegistrySettings.model_fields)


class SchemaRegistryResource(ResourceWithSecrets):
    """A schema registry with Confluent's API: Confluent's own, Karapace, Apicurio, and others."""

    settings_class: ClassVar[type[SchemaRegistrySettings]] = SchemaRegistrySettings
    secrets: ClassVar[tuple[str, ...]] = ("password",)

    url: str = Field(
        description=(
            "`https://host:8081`, where the API begins (of Apicurio `…/apis/ccompat/v7`); several with "
            "commas between them are tried in turn."
        )
    )
    username: str | None = Field(
        default=None, description="Of basic authentication, or the key of a managed registry."
    )
    password: str | None = Field(default=None, repr=False, description="A secret: only as dg.EnvVar.")
    ssl_ca_location: str | None = Field(
        default=None,
        description=(
            "PEM file of the authority that signed the registry's certificate; certifi's authorities, or "
            "those of `SSL_CERT_FILE`, unless set."
        ),
    )
    _registry: SchemaRegistry | None = PrivateAttr(default=None)

    def decode(
        self, batch: DataFrame, subject: str, *, column: str = "value", message: str | None = None
    ) -> DataFrame:
        """Return the batch with a column decoded by Spark.

        The column has Avro, Protobuf or JSON Schema in Confluent's wire format. Each record is read by the
        schema it was written by, and comes out as the newest version of ``subject`` has it: a field that was
        added has its default, or is null, where a record has none. Reads the batch once for the ids.

        Args:
            batch: records from Kafka, or some of them.
            subject: whose newest version says what comes out: by the usual strategy the topic with ``-value``
                or ``-key``.
            column: ``value`` or ``key``, bytes as Kafka has them. Null stays null. A row with anything else
                than the wire format, or of a schema that the registry does not have, fails when Spark
                computes it.
            message: the full name of the Protobuf message, the first of the file unless told.

        Raises:
            RegistryUnreachableError: the registry did not answer within 20 s, or is none.
            AccessRefusedError: it refused the login, or its certificate was refused.
            SchemaNotFoundError: it has no such subject.
            SchemaUnusableError: a schema is none that Spark can decode by.
            InvalidSettingError: the column holds no bytes; or what a variable holds is no setting.
        """
        from kafka_liveness_dagster.kafka.schema_registry import SchemaNotFoundError  # noqa: PLC0415 - an extra brings it
        from kafka_liveness_dagster.spark.decode.decode import decode_column, writer_schema_ids  # noqa: PLC0415 - pyspark stays lazy

        registry = self._client()
        written_by = []
        for number, where in sorted(writer_schema_ids(batch, column).items()):
            with suppress(SchemaNotFoundError):  # its records fail, and no others: they may be dead letters
                written_by.append(registry.schema(number, where))
        # the newest version is asked for last: it is not older than those that records have
        return decode_column(batch, column, written_by, reader=registry.latest(subject), message=message)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002 - Dagster's signature
        """Close the connections.

        Caller: Dagster, when the run's resources are torn down.
        """
        if self._registry is not None:
            self._registry.close()
            self._registry = None

    def _client(self) -> SchemaRegistry:
        from kafka_liveness_dagster.kafka.schema_registry import SchemaRegistry  # noqa: PLC0415 - confluent_kafka stays lazy

        if self._registry is None:
            told = {name: resolve_env_vars(getattr(self, name)) for name in _FIELDS}
            self._registry = SchemaRegistry(RegistrySettings(**told))
        return self._registry
