"""Query the schema registry by Confluent's own client.

Each request has a limit of seconds, and each refusal has its own error. Never shows a password: not in
``repr``, not in an error.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core.errors import InvalidSettingError, KafkaLivenessError, summary_line
from kafka_liveness_dagster.core.schemas import SchemaUnusableError, SchemaWithId
from kafka_liveness_dagster.kafka.errors import AccessRefusedError
from kafka_liveness_dagster.kafka.schema_registry_settings import RETRY_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka.schema_registry import RegisteredSchema, Schema

    from kafka_liveness_dagster.kafka.schema_registry_settings import RegistrySettings

_SCHEMA_FORMAT = (
    "serialized"  # Protobuf as a descriptor; a registry without this form returns the .proto file
)
_NOT_FOUND_CODES = {40401: "subject", 40402: "version", 40403: "schema"}  # the codes of the registry's API
_UNAUTHORIZED = 401
_FORBIDDEN = 403
_NOT_FOUND = 404
_NOTHING_WRITTEN = "Nothing of the batch was written or committed"


class RegistryUnreachableError(KafkaLivenessError, ConnectionError):
    """No schema registry responded at the address in time, or another server did.

    Nothing was written.
    """


class SchemaNotFoundError(KafkaLivenessError, LookupError):
    """The schema registry has no such subject, or no schema with that id; nothing was written."""


class SchemaRegistry:
    """A schema registry; each schema is fetched once, the latest version of a subject each time.

    Raises:
        InvalidSettingError: a dependency of Confluent's client is not installed.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415 - an extra brings it
        except ImportError as error:
            raise InvalidSettingError(
                f"a schema registry needs a package that is not installed here ({error}). Fix: pip "
                "install 'kafka-liveness-dagster[registry]'"
            ) from None
        self._url = settings.url
        self._client = SchemaRegistryClient(settings.client_config())

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def schema(self, number: int, where: str) -> SchemaWithId:
        """Return the schema with this id, by which a record was written.

        Args:
            number: id of the schema.
            where: the record, for an error.

        Raises:
            SchemaNotFoundError: the registry has no schema with this id.
            RegistryUnreachableError, AccessRefusedError, SchemaUnusableError: see these classes.
        """
        found: Schema = self._request(
            lambda: self._client.get_schema(number, fmt=_SCHEMA_FORMAT),
            f"schema {number}, used by {where}",
        )
        return self._require_usable(number, found)

    def latest(self, subject: str) -> SchemaWithId:
        """Return the newest version of a subject.

        Raises:
            SchemaNotFoundError: there is no such subject.
            RegistryUnreachableError, AccessRefusedError, SchemaUnusableError: see these classes.
        """
        self._client.clear_latest_caches()  # else the client keeps a version for its whole life
        found: RegisteredSchema = self._request(
            lambda: self._client.get_latest_version(subject, fmt=_SCHEMA_FORMAT), f"subject {subject!r}"
        )
        return self._require_usable(found.schema_id or 0, found.schema)

    def _require_usable(self, number: int, schema: Schema) -> SchemaWithId:
        if not schema.schema_str:
            raise RegistryUnreachableError(self._not_a_registry_message("a response without a schema"))
        if schema.references:
            named = ", ".join(str(one.name) for one in schema.references)
            raise SchemaUnusableError(
                f"schema {number} of {self._url} refers to others ({named}), which decode() does not "
                f"follow. {_NOTHING_WRITTEN}. Fix: register it as one schema, or decode the column by "
                "your own function"
            )
        return SchemaWithId(number, schema.schema_type or "AVRO", schema.schema_str)

    def _request(self, ask: Callable[[], Any], what: str) -> Any:
        from confluent_kafka.schema_registry import SchemaRegistryError  # noqa: PLC0415 - see above

        try:
            return ask()
        except SchemaRegistryError as error:
            raise self._request_error(error.http_status_code, error.error_code, what) from None
        except Exception as error:  # noqa: BLE001 - of a HTTP client, which one is Confluent's business
            told = summary_line(error)[:200]
            if _is_certificate_error(error):
                raise AccessRefusedError(
                    f"the certificate of the schema registry at {self._url} was refused ({told}). "
                    f"{_NOTHING_WRITTEN}. Fix: set ssl_ca_location to the PEM file of the authority that "
                    "signed it, and use the host of the certificate in url"
                ) from None
            if isinstance(error, (ValueError, KeyError, TypeError, AttributeError)):
                raise RegistryUnreachableError(
                    self._not_a_registry_message("no JSON of a schema registry")
                ) from None
            raise RegistryUnreachableError(
                f"no schema registry answered at {self._url} in {RETRY_SETTINGS['max.retries'] + 1} "
                f"attempts of {RETRY_SETTINGS['timeout']} s ({told}), asked for {what}. "
                f"{_NOTHING_WRITTEN}. Fix: start it, or correct url"
            ) from None

    def _request_error(self, status: int, code: int, what: str) -> KafkaLivenessError:
        if status in (_UNAUTHORIZED, _FORBIDDEN):
            return AccessRefusedError(
                f"the schema registry at {self._url} refused the login (HTTP {status}), asked for "
                f"{what}. {_NOTHING_WRITTEN}. Fix: correct username and password, or let that user read "
                "the subject"
            )
        if status == _NOT_FOUND and code in _NOT_FOUND_CODES:
            return SchemaNotFoundError(
                f"the schema registry at {self._url} has no {what} (HTTP {status}, code {code}). "
                f"{_NOTHING_WRITTEN}. Fix: correct the subject, correct url if the producers use another "
                "registry, or register it again"
            )
        if status == _NOT_FOUND:
            return RegistryUnreachableError(
                self._not_a_registry_message(f"HTTP {status} and no code of a schema registry")
            )
        return RegistryUnreachableError(
            f"the schema registry at {self._url} answered with HTTP {status} (code {code}), asked for "
            f"{what}. {_NOTHING_WRITTEN}; the batch is retried. Fix: read the log of the registry"
        )

    def _not_a_registry_message(self, answered: str) -> str:
        return (
            f"the server at {self._url} is no schema registry: it answered with {answered}. "
            f"{_NOTHING_WRITTEN}. Fix: set url to the address where Confluent's API begins: "
            "http://host:8081 for Confluent and Karapace, http://host:8080/apis/ccompat/v7 for Apicurio"
        )


def _cause_chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_certificate_error(error: Exception) -> bool:
    return any(
        isinstance(one, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY" in str(one)
        for one in _cause_chain(error)
    )
