r"""Configure how client and broker authenticate, alike for librdkafka and for Spark's JVM.

Never lets the two differ. A setting that only one of them supports is refused, and so is an unused setting.

>>> login = {"sasl_mechanism": "PLAIN", "sasl_username": "etl", "sasl_password": 'a"b'}
>>> Security(security_protocol="SASL_SSL", **login).spark_options()["kafka.sasl.jaas.config"]
'org.apache.kafka.common.security.plain.PlainLoginModule required username="etl" password="a\\"b";'
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import ENDPOINT, VALUE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_TOKEN_MECHANISM = "OAUTHBEARER"  # noqa: S105
_OIDC_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_OIDC_REQUEST_MS = "10000"
"""Limit of a request to the token server; Java has none by default.

Without it, a token server that accepts a connection and never responds holds a Spark task.
"""
_OIDC_METHOD = "sasl.oauthbearer.method"
_TOKEN_SETTINGS = {_OIDC_METHOD: "oidc", "https.ca.location": "probe"}
"""librdkafka's settings for OAUTHBEARER. Without ``probe``, curl in confluent-kafka's wheel for Linux looks
for the authorities in Red Hat's location. On Debian it then trusts no token server (seen with 2.16.1)."""
HOST_NAME_CHECKS = {"https": "https", "none": ""}  # librdkafka's names, and the JVM's
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_PKCS8 = re.compile(
    r"-----BEGIN (ENCRYPTED )?PRIVATE KEY-----.+?-----END (ENCRYPTED )?PRIVATE KEY-----", re.DOTALL
)
_ABOUT_SECURITY = ("sasl.", "ssl.", "ssl_", "security.", "https.", "enable.ssl.", "enable.sasl.")
_PASSWORD_LOGIN = ("sasl_username", "sasl_password")
_TOKEN_LOGIN = (
    "sasl_oauthbearer_client_id",
    "sasl_oauthbearer_client_secret",
    "sasl_oauthbearer_token_endpoint_url",
)
_TOKEN_OPTIONS = ("sasl_oauthbearer_scope", "sasl_oauthbearer_extensions", "https_ca_location")
_EXTENSION = re.compile(
    r"(?!auth=)([a-zA-Z]+)=([\x21-\x2b\x2d-\x7e](?:[\x20-\x2b\x2d-\x7e]*[\x21-\x2b\x2d-\x7e])?)"
)
"""An extension by RFC 7628: letters in a name, printable ASCII in a value.

The name ``auth`` is reserved for the token. A comma separates two extensions.
"""
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True)
class Security:
    """Security settings, named as librdkafka's with dots replaced by underscores; files are PEM.

    Raises:
        InvalidSettingError: a setting is missing or unused, or a file lacks its certificate or key.
    """

    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    _: KW_ONLY
    sasl_password: str | None = field(default=None, repr=False)
    ssl_ca_location: str | None = None
    ssl_certificate_location: str | None = None
    ssl_key_location: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_endpoint_identification_algorithm: str = "https"
    sasl_oauthbearer_client_id: str | None = None
    sasl_oauthbearer_client_secret: str | None = field(default=None, repr=False)
    sasl_oauthbearer_token_endpoint_url: str | None = None
    sasl_oauthbearer_scope: str | None = None
    sasl_oauthbearer_extensions: str | None = None
    https_ca_location: str | None = None

    def __post_init__(self) -> None:
        if wrong := list(contradictions({name: getattr(self, name) for name in SETTING_DEFAULTS})):
            raise InvalidSettingError("\n".join(wrong))
        _ = self.certificates_fingerprint  # reads the files, so a bad file is refused here

    @cached_property
    def certificates_fingerprint(self) -> int:
        """A number that differs if the files had other content when this object was created."""
        return hash(tuple(self.spark_options().items()))

    @property
    def uses_tokens(self) -> bool:
        """Whether each client logs in with tokens of ``sasl_oauthbearer_token_endpoint_url``."""
        return self.sasl_mechanism == _TOKEN_MECHANISM

    @property
    def login(self) -> str | None:
        """The name in the login: a user, or the client of a token server."""
        return self.sasl_oauthbearer_client_id if self.uses_tokens else self.sasl_username

    @property
    def hidden_reason(self) -> str:
        """A clause for errors: the object may exist, but this login may not see it.

        A broker's response is the same in both cases.
        """
        if self.security_protocol == "PLAINTEXT":
            return ""
        who = f"user {self.login!r}" if self.login else "this client"
        return f", or {who} lacks the right READ to see it"

    def client_config(self) -> dict[str, str]:
        """Return librdkafka's settings: those that were set, and those that OAUTHBEARER requires."""
        given = {name: getattr(self, name) for name in SETTING_DEFAULTS}
        told = {
            name.replace("_", "."): value
            for name, value in given.items()
            if value and value != SETTING_DEFAULTS[name]
        }
        return {**_TOKEN_SETTINGS, **told} if self.uses_tokens else told

    def spark_options(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source, with the files' content for remote executors."""
        options = (
            {"security.protocol": self.security_protocol} if self.security_protocol != "PLAINTEXT" else {}
        )
        if self.sasl_mechanism:
            login = self._token_login() if self.uses_tokens else self._password_login()
            told = " ".join(f"{name}={_quote_jaas(value)}" for name, value in login.items())
            options["sasl.mechanism"] = self.sasl_mechanism
            options["sasl.jaas.config"] = f"{MECHANISMS[self.sasl_mechanism]} required {told};"
        if self.uses_tokens:
            options["sasl.login.callback.handler.class"] = _OIDC_HANDLER
            options["sasl.login.connect.timeout.ms"] = options["sasl.login.read.timeout.ms"] = (
                _OIDC_REQUEST_MS
            )
            options["sasl.oauthbearer.token.endpoint.url"] = self.sasl_oauthbearer_token_endpoint_url or ""
        if self.ssl_ca_location:
            options["ssl.truststore.type"] = "PEM"
            options["ssl.truststore.certificates"] = _read_certificates(
                "ssl_ca_location", self.ssl_ca_location
            )
        if self.ssl_certificate_location and self.ssl_key_location:
            chain = _read_certificates("ssl_certificate_location", self.ssl_certificate_location)
            options["ssl.keystore.type"] = "PEM"
            options["ssl.keystore.certificate.chain"] = chain
            options["ssl.keystore.key"] = _read_key(
                self.ssl_key_location, encrypted=bool(self.ssl_key_password)
            )
        if self.ssl_key_password:
            options["ssl.key.password"] = self.ssl_key_password
        check = self.ssl_endpoint_identification_algorithm
        if check != SETTING_DEFAULTS["ssl_endpoint_identification_algorithm"]:
            options["ssl.endpoint.identification.algorithm"] = HOST_NAME_CHECKS[check]
        return {f"kafka.{name}": value for name, value in options.items()}

    def _password_login(self) -> dict[str, str]:
        return {"username": self.sasl_username or "", "password": self.sasl_password or ""}

    def _token_login(self) -> dict[str, str]:
        """Return options of Java's login module; only these decide whether it trusts the token server."""
        found = {
            "clientId": self.sasl_oauthbearer_client_id or "",
            "clientSecret": self.sasl_oauthbearer_client_secret or "",
        }
        if self.sasl_oauthbearer_scope:
            found["scope"] = self.sasl_oauthbearer_scope
        for extension in (self.sasl_oauthbearer_extensions or "").split(","):
            name, _, value = extension.partition("=")
            found.update({f"extension_{name}": value} if name else {})
        if self.https_ca_location:
            found["ssl.truststore.type"] = "PEM"
            found["ssl.truststore.certificates"] = _read_certificates(
                "https_ca_location", self.https_ca_location
            )
        return found


SETTING_DEFAULTS = {one.name: one.default for one in fields(Security)}


def contradictions(given: Mapping[str, str | None], unknown: Collection[str] = ()) -> Iterator[str]:
    """Yield a message for each invalid setting; no message contains a secret, and no file is read.

    Args:
        given: each field and its value.
        unknown: fields that are set from an environment variable, so that only a run has their content.
    """
    for name in SETTING_DEFAULTS:
        if not VALUE.matches(given[name] or ""):
            yield f"{name} is refused: wanted {VALUE.description}"
    protocol = given["security_protocol"] or ""
    check = given["ssl_endpoint_identification_algorithm"]
    if protocol not in PROTOCOLS:
        yield f"security_protocol is {protocol!r}: wanted {', '.join(PROTOCOLS)}"
    if check not in HOST_NAME_CHECKS:
        yield f"ssl_endpoint_identification_algorithm is {check!r}: wanted {' or '.join(HOST_NAME_CHECKS)}"
    yield from _find_login_contradictions(protocol, given)
    if given["sasl_mechanism"] == _TOKEN_MECHANISM:
        yield from _find_token_contradictions(protocol, {n: v for n, v in given.items() if n not in unknown})
    unused = [
        name
        for name in SETTING_DEFAULTS
        if name.startswith("ssl_") and given[name] not in ("", SETTING_DEFAULTS[name])
    ]
    if unused and not protocol.endswith("SSL"):
        yield (
            f"{' and '.join(unused)} would not be used: security_protocol is {protocol}, not SSL or SASL_SSL"
        )
    if bool(given["ssl_certificate_location"]) != bool(given["ssl_key_location"]):
        yield "ssl_certificate_location and ssl_key_location belong together: set both, or neither"
    if given["ssl_key_password"] and not given["ssl_key_location"]:
        yield "ssl_key_password would not be used: ssl_key_location is missing"


def _find_login_contradictions(protocol: str, given: Mapping[str, str | None]) -> Iterator[str]:
    mechanism = given["sasl_mechanism"]
    every = ("sasl_mechanism", *_PASSWORD_LOGIN, *_TOKEN_LOGIN, *_TOKEN_OPTIONS)
    if not protocol.startswith("SASL_"):
        if unused := [name for name in every if given[name]]:
            yield (
                f"{' and '.join(unused)} would not be used: security_protocol is {protocol}. Set it to "
                "SASL_SSL, or to SASL_PLAINTEXT where the network is trusted"
            )
        return
    needed = _TOKEN_LOGIN if mechanism == _TOKEN_MECHANISM else _PASSWORD_LOGIN
    if missing := [name for name in ("sasl_mechanism", *needed) if not given[name]]:
        yield f"security_protocol is {protocol}, but {' and '.join(missing)} is missing or empty: set it"
    if mechanism and mechanism not in MECHANISMS:
        known = ", ".join(MECHANISMS)
        yield f"sasl_mechanism is {mechanism!r}: wanted {known}; Spark supports no other"
    elif mechanism:
        others = _PASSWORD_LOGIN if mechanism == _TOKEN_MECHANISM else (*_TOKEN_LOGIN, *_TOKEN_OPTIONS)
        if unused := [name for name in others if given[name]]:
            yield f"{' and '.join(unused)} would not be used: sasl_mechanism is {mechanism}"


def _find_token_contradictions(protocol: str, known: Mapping[str, str | None]) -> Iterator[str]:
    for name in (*_TOKEN_LOGIN[:2], "sasl_oauthbearer_scope"):
        if (value := known.get(name)) and value != value.strip():
            yield (
                f"{name} is refused: it begins or ends with a blank, which Java removes and librdkafka keeps"
            )
    extensions = known.get("sasl_oauthbearer_extensions")
    if extensions and not all(map(_EXTENSION.fullmatch, extensions.split(","))):
        wanted = "wanted name=value,name=value, with letters in a name and printable ASCII in a value"
        yield f"sasl_oauthbearer_extensions is refused: {wanted}"
    if url := known.get("sasl_oauthbearer_token_endpoint_url"):
        if not ENDPOINT.matches(url):
            yield f"sasl_oauthbearer_token_endpoint_url is refused: wanted {ENDPOINT.description}"
        elif not url.startswith("https://"):
            if protocol == "SASL_SSL":
                yield (
                    "sasl_oauthbearer_token_endpoint_url is refused: with SASL_SSL it must begin with "
                    "https://, because the client secret is sent to it unencrypted otherwise"
                )
            if known.get("https_ca_location"):
                yield (
                    "https_ca_location would not be used: sasl_oauthbearer_token_endpoint_url does not "
                    "begin with https://"
                )


def take_from_properties(properties: dict[str, str]) -> Security:
    """Remove the security settings from librdkafka's ``properties`` and return them.

    With OAUTHBEARER ``client_config`` adds two settings by itself. Other values of these two stay in
    ``properties``, and are checked or refused later.
    """
    if properties.get("sasl.mechanism") == _TOKEN_MECHANISM:
        for name, value in _TOKEN_SETTINGS.items():
            if properties.get(name) == value:
                del properties[name]
    found = {
        name: properties.pop(dotted)
        for name in SETTING_DEFAULTS
        if (dotted := name.replace("_", ".")) in properties
    }
    return Security(**found)


def is_security_setting(setting: str) -> bool:
    """Return whether a librdkafka setting concerns security, so that Spark needs the same value."""
    return setting.startswith(_ABOUT_SECURITY)


def replacement_for(setting: str) -> str:
    """Return the text that names the setting to use instead, which also reaches Spark."""
    name = {"sasl.mechanisms": "sasl_mechanism", _OIDC_METHOD: "sasl_mechanism"}.get(
        setting, setting.replace(".", "_")
    )
    if name in SETTING_DEFAULTS:
        return f"it would not reach Spark, which reads the records: set {name}, which reaches both"
    return "it would not reach Spark, which reads the records. What reaches both: " + ", ".join(
        SETTING_DEFAULTS
    )


def _quote_jaas(value: str | None) -> str:
    """Return a quoted JAAS string; Java reads it with the escapes of the Java language."""
    return f'"{(value or "").translate(_ESCAPED)}"'


def _read_file(name: str, file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidSettingError(
            f"{name}={file} cannot be read ({error.strerror}): it must be a PEM file on the machines "
            "where runs and sensors work; Spark receives its content"
        ) from None


def _read_certificates(name: str, file: str) -> str:
    if found := _CERTIFICATE.findall(_read_file(name, file)):
        return "\n".join(found)
    raise InvalidSettingError(
        f"{name}={file} holds no PEM certificate. Fix: export it (`keytool -exportcert -rfc`, `openssl "
        "pkcs12 -nokeys`, `openssl x509 -inform der`)"
    )


def _read_key(file: str, *, encrypted: bool) -> str:
    found = _PKCS8.search(_read_file("ssl_key_location", file))
    if found is None:
        raise InvalidSettingError(
            f"ssl_key_location={file} holds no private key in PKCS#8, the only form that Spark's JVM "
            "reads. Fix: convert it (`openssl pkcs8 -topk8 -in KEY -out KEY.pk8`)"
        )
    if bool(found[1]) != encrypted:
        what = (
            "encrypted, but ssl_key_password is missing. Fix: set ssl_key_password"
            if found[1]
            else "not encrypted. Fix: leave ssl_key_password out"
        )
        raise InvalidSettingError(f"the key in ssl_key_location={file} is {what}")
    return found[0]
