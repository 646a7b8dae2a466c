"""Schema registry resource, which a transform requests like any other Dagster resource."""

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
            "`https://host:8081`, the base address of the API (for Apicurio `…/apis/ccompat/v7`). Several "
            "addresses, separated by commas, are tried in turn."
        )
    )
    username: str | None = Field(
        default=None, description="The user of basic authentication, or the key of a managed registry."
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

        The column has Avro, Protobuf or JSON Schema in Confluent's wire format. Spark decodes each record by
        its writer schema, and converts it to the newest version of ``subject``. If a record lacks a field of
        that version, the field has its default, or is null. Reads the batch once for the schema ids.

        Args:
            batch: records from Kafka, or some of them.
            subject: subject with the schema of the result. By the usual strategy it is the topic name with
                ``-value`` or ``-key``.
            column: ``value`` or ``key``, the bytes from Kafka. Null stays null. A row fails, when Spark
                computes it, if it is not in the wire format or the registry lacks its schema.
            message: full name of the Protobuf message; the first message of the file by default.

        Raises:
            RegistryUnreachableError: the registry did not respond within 20 s, or the server is no registry.
            AccessRefusedError: the registry refused the login, or its certificate was refused.
            SchemaNotFoundError: the registry has no such subject.
            SchemaUnusableError: Spark cannot decode records by one of the schemas.
            InvalidSettingError: the column has no bytes, or an environment variable has an invalid value.
        """
        from kafka_liveness_dagster.kafka.schema_registry import SchemaNotFoundError  # noqa: PLC0415 - an extra brings it
        from kafka_liveness_dagster.spark.decode.decode import decode_column, writer_schema_ids  # noqa: PLC0415 - pyspark stays lazy

        registry = self._client()
        written_by = []
        for number, where in sorted(writer_schema_ids(batch, column).items()):
            with suppress(SchemaNotFoundError):  # only its records fail; they may become dead letters
                written_by.append(registry.schema(number, where))
        # The newest version is queried last, so that it is not older than the schemas of the records
        return decode_column(batch, column, written_by, reader=registry.latest(subject), message=message)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002 - Dagster's signature
        """Close the connections to the registry.

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
