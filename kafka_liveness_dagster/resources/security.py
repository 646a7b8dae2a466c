"""Which fields say how a resource proves who it is? librdkafka's names, each fit for ``dg.EnvVar``.

Never shows a secret: not in ``repr``, not in an error, and not on the resource's page in Dagster's UI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import dagster as dg
from pydantic import Field

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.settings.declared import CheckedResource, resolved

if TYPE_CHECKING:
    from kafka_liveness_dagster.kafka.security import Security


_PUBLIC_PARAMETERS = {"grpc_max_message_size", "session_id", "use_ssl", "user_agent", "user_id"}
"""Of a Spark Connect address. The others are the token, and headers that a proxy may take for a login."""


class ResourceWithSecrets(CheckedResource):
    """A resource some of whose fields nobody may see: ``secrets`` always, ``addresses`` where they hold a login."""

    secrets: ClassVar[tuple[str, ...]] = ()
    addresses: ClassVar[tuple[str, ...]] = ()

    def get_resource_definition(self) -> Any:
        """What Dagster makes of this resource when a code location is loaded; its UI would show a secret in plain.

        Raises:
            InvalidSettingError: a secret, or an address with one, is not given as ``dg.EnvVar``.
        """
        for name in self.secrets:
            value = getattr(self, name)
            if value is not None and not isinstance(value, dg.EnvVar):
                raise InvalidSettingError(
                    f"{name} is given as its value, which Dagster's UI would show: put it into an environment variable "
                    f'and write {name}=dg.EnvVar("ITS_NAME")'
                )
        for name in self.addresses:
            value = getattr(self, name)
            if isinstance(value, str) and not isinstance(value, dg.EnvVar) and _holds_secret(value):
                raise InvalidSettingError(
                    f"{name} holds a token or a login as its value, which Dagster's UI would show. Fix: put the whole "
                    f'address into an environment variable and write {name}=dg.EnvVar("ITS_NAME")'
                )
        return super().get_resource_definition()


def _holds_secret(address: str) -> bool:
    """Return whether an address has a user's name and password, or a parameter that may be a token."""
    url = urlsplit(address)
    parameters = (one.partition("=") for one in url.path.split(";")[1:])
    return "@" in url.netloc or any(value and name not in _PUBLIC_PARAMETERS for name, _, value in parameters)


class SecuredKafkaResource(ResourceWithSecrets):
    """The security settings of a Kafka cluster, for librdkafka and for Spark's Kafka source alike."""

    secrets: ClassVar[tuple[str, ...]] = ("sasl_password", "sasl_oauthbearer_client_secret", "ssl_key_password")

    # str and not Literal: dg.EnvVar fits no Literal
    security_protocol: str = Field(default="PLAINTEXT", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.")
    sasl_mechanism: str | None = Field(default=None, description="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER.")
    sasl_username: str | None = Field(default=None, description="The user, or the key of a managed cluster.")
    sasl_password: str | None = Field(default=None, repr=False, description="A secret: only as dg.EnvVar.")
    ssl_ca_location: str | None = Field(
        default=None,
        description="PEM file of the authority that signed the brokers' certificates; the system's and Java's own "
        "authorities unless set. Spark is sent the content of this and of the next two files.",
    )
    ssl_certificate_location: str | None = Field(default=None, description="PEM file of a client's certificate (mTLS).")
    ssl_key_location: str | None = Field(default=None, description="PEM file of its key, in PKCS#8.")
    ssl_key_password: str | None = Field(
        default=None, repr=False, description="A secret: only as dg.EnvVar. Of an encrypted key."
    )
    ssl_endpoint_identification_algorithm: str = Field(
        default="https", description="`none` accepts a certificate made for another host name."
    )
    sasl_oauthbearer_client_id: str | None = Field(
        default=None, description="With OAUTHBEARER: the client ID at the token server (OIDC client credentials)."
    )
    sasl_oauthbearer_client_secret: str | None = Field(
        default=None, repr=False, description="With OAUTHBEARER. A secret: only as dg.EnvVar."
    )
    sasl_oauthbearer_token_endpoint_url: str | None = Field(
        default=None,
        description="With OAUTHBEARER: the token endpoint, an https address. Runs, sensors, and Spark's driver and "
        "executors request tokens from it.",
    )
    sasl_oauthbearer_scope: str | None = Field(default=None, description="With OAUTHBEARER: the scope to request.")
    sasl_oauthbearer_extensions: str | None = Field(
        default=None,
        description="With OAUTHBEARER: `name=value,name=value` for the broker, such as Confluent Cloud's "
        "`logicalCluster=lkc-…,identityPoolId=pool-…`.",
    )
    https_ca_location: str | None = Field(
        default=None,
        description="PEM file of the authority that signed the token server's certificate; the system's and Java's "
        "own authorities unless set.",
    )

    def security(self) -> Security:
        """The settings, checked; files are looked at.

        Raises:
            InvalidSettingError: settings that contradict each other, or a file without what it should hold.
        """
        from kafka_liveness_dagster.kafka.security import NAMES, Security  # noqa: PLC0415 - only where it is used

        return Security(**{name: resolved(getattr(self, name)) for name in NAMES})
