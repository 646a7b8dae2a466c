"""Security settings without a broker.

What is refused, what each side is told, and that no secret is ever shown.
"""

from __future__ import annotations

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.kafka.security import Security
from kafka_liveness_dagster.kafka.settings import KafkaSettings
from kafka_liveness_dagster.spark.source import source_group_id

LOGIN = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "PLAIN",
    "sasl_username": "etl",
    "sasl_password": "hunter2",
}

TOKENS = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauthbearer_client_id": "etl",
    "sasl_oauthbearer_client_secret": "hunter2",
    "sasl_oauthbearer_token_endpoint_url": "https://login.example/token",
}


@pytest.fixture
def pem(tmp_path):
    """Write a PEM file: ``pem(name, content) -> path``."""

    def write(name, content):
        file = tmp_path / name
        file.write_text(content)
        return str(file)

    return write


def block(kind, content="MIIB"):
    """A PEM block; nobody here looks into it."""
    return f"-----BEGIN {kind}-----\n{content}\n-----END {kind}-----\n"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"security_protocol": "TLS"}, "wanted PLAINTEXT, SSL", id="no such protocol"),
        pytest.param(
            {**LOGIN, "sasl_mechanism": "GSSAPI"}, "'GSSAPI': wanted PLAIN", id="Spark cannot be told"
        ),
        pytest.param(
            {**LOGIN, "sasl_mechanism": None}, "sasl_mechanism is missing", id="librdkafka would take GSSAPI"
        ),
        pytest.param(
            {**LOGIN, "sasl_password": ""}, "sasl_password is missing or empty", id="an empty variable"
        ),
        pytest.param(
            {**LOGIN, "sasl_mechanism": "OAUTHBEARER"}, "client_secret and .* missing", id="no token server"
        ),
        pytest.param(
            {**TOKENS, "sasl_username": "etl"}, "sasl_username would not be used: .* OAUTHBEARER", id="both"
        ),
        pytest.param(
            {**LOGIN, "sasl_oauthbearer_scope": "a"}, "scope would not be used: .* PLAIN", id="of no token"
        ),
        pytest.param(
            {**LOGIN, "https_ca_location": "ca.pem"}, "https_ca_location would not", id="no token server's"
        ),
        pytest.param(
            {**TOKENS, "sasl_oauthbearer_token_endpoint_url": "http://login.example/token"},
            "begin with https",
            id="HTTP",
        ),
        pytest.param(
            {**TOKENS, "sasl_oauthbearer_token_endpoint_url": "https://etl:hunter2@login.example/"},
            "without a user",
            id="a secret in the address",
        ),
        pytest.param(
            {**TOKENS, "sasl_oauthbearer_client_secret": "hunter2 "},
            "which Java removes",
            id="another secret for Java",
        ),
        pytest.param(
            {**TOKENS, "sasl_oauthbearer_extensions": "auth=hunter2"},
            "letters in a name",
            id="the token itself",
        ),
        pytest.param(
            {**TOKENS, "sasl_oauthbearer_extensions": "a=b,"}, "letters in a name", id="half an extension"
        ),
        pytest.param(
            {**TOKENS, "https_ca_location": "nowhere.pem"}, r"cannot be read \(No such", id="no such file"
        ),
        pytest.param(
            {
                **TOKENS,
                "security_protocol": "SASL_PLAINTEXT",
                "https_ca_location": "ca.pem",
                "sasl_oauthbearer_token_endpoint_url": "http://login.example/token",
            },
            "https_ca_location would not be used",
            id="nothing to verify",
        ),
        pytest.param(
            {**LOGIN, "security_protocol": "SSL"}, "sasl_password would not be used", id="never sent"
        ),
        pytest.param({"sasl_password": "hunter2"}, "security_protocol is PLAINTEXT", id="protocol forgotten"),
        pytest.param(
            {"ssl_ca_location": "ca.pem"}, "ssl_ca_location would not be used", id="nothing is encrypted"
        ),
        pytest.param(
            {**LOGIN, "ssl_endpoint_identification_algorithm": "off"},
            "wanted https or none",
            id="no such check",
        ),
        pytest.param(
            {"security_protocol": "SSL", "ssl_certificate_location": "a.pem"},
            "set both, or neither",
            id="half of mTLS",
        ),
        pytest.param(
            {"security_protocol": "SSL", "ssl_key_password": "hunter2"},
            "ssl_key_location is missing",
            id="of no key",
        ),
        pytest.param(
            {"security_protocol": "SSL", "ssl_ca_location": "nowhere.pem"},
            r"cannot be read \(No such",
            id="no file",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_without_showing_a_secret(settings, words):
    """Before anything is joined: each refusal names the field and what to do, and never a secret."""
    with pytest.raises(InvalidSettingError, match=words) as refusal:
        Security(**settings)
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "password", "words"),
    [
        pytest.param("EC PRIVATE KEY", None, "openssl pkcs8 -topk8", id="Java reads PKCS8 only"),
        pytest.param("ENCRYPTED PRIVATE KEY", None, "ssl_key_password is missing", id="cannot be opened"),
        pytest.param("PRIVATE KEY", "hunter2", "leave ssl_key_password out", id="Java would not open it"),
    ],
)
def test_a_key_that_one_side_cannot_read_is_refused(pem, key, password, words):
    """Librdkafka reads more forms than the JVM: a key has to fit both."""
    settings = {
        "security_protocol": "SSL",
        "ssl_certificate_location": pem("cert.pem", block("CERTIFICATE")),
        "ssl_key_location": pem("key.pem", block(key)),
        "ssl_key_password": password,
    }
    with pytest.raises(InvalidSettingError, match=words) as refusal:
        Security(**settings)
    assert "hunter2" not in str(refusal.value)


def test_a_file_without_a_certificate_is_refused(pem):
    """A key or a Java keystore where a certificate belongs."""
    with pytest.raises(InvalidSettingError, match=r"holds no PEM certificate\. Fix: export it"):
        Security(security_protocol="SSL", ssl_ca_location=pem("ca.jks", "\u0000keystore"))


def test_both_sides_are_told_the_same(pem):
    """Paths for librdkafka, the content for Spark: only the PEM blocks of it."""
    ca, cert, key = (
        block("CERTIFICATE", "CA1"),
        block("CERTIFICATE", "ME"),
        block("ENCRYPTED PRIVATE KEY", "KEY"),
    )
    files = {
        "ssl_ca_location": pem("ca.pem", f"the authority\n{ca}and its sister\n{ca}"),
        "ssl_certificate_location": pem("both.pem", key + cert),
        "ssl_key_location": pem("both.pem", key + cert),
    }
    more = {"ssl_key_password": "k", "ssl_endpoint_identification_algorithm": "none"}
    security = Security(**{**LOGIN, "sasl_mechanism": "SCRAM-SHA-256"}, **files, **more)
    assert security.client_config() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "etl",
        "sasl.password": "hunter2",
        **{name.replace("_", "."): value for name, value in {**files, **more}.items()},
    }
    login = (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="etl" password="hunter2";'
    )
    assert security.spark_options() == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": login,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": ca + ca.strip(),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": cert.strip(),
        "kafka.ssl.keystore.key": key.strip(),
        "kafka.ssl.key.password": "k",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }
    assert Security().client_config() == Security().spark_options() == {}


def test_both_sides_are_told_of_the_token_server(pem):
    """Java trusts it by options of its login module; an empty extension or scope is not sent."""
    ca = block("CERTIFICATE", "CA1")
    more = {
        "sasl_oauthbearer_scope": "api://a/.default b",
        "sasl_oauthbearer_extensions": "logicalCluster=lkc-1,identityPoolId=a=b c",
        "https_ca_location": pem("ca.pem", ca),
    }
    security = Security(**TOKENS, **more)
    settings = {name.replace("_", "."): value for name, value in {**TOKENS, **more}.items()}
    assert security.client_config() == {**settings, "sasl.oauthbearer.method": "oidc"}
    pem_in_java = ca.strip().replace("\n", "\\n")
    assert security.spark_options() == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule "
        'required clientId="etl" clientSecret="hunter2" scope="api://a/.default b" '
        'extension_logicalCluster="lkc-1" extension_identityPoolId="a=b c" '
        f'ssl.truststore.type="PEM" ssl.truststore.certificates="{pem_in_java}";',
        "kafka.sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler",
        "kafka.sasl.login.connect.timeout.ms": "10000",
        "kafka.sasl.login.read.timeout.ms": "10000",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
    }
    plain = Security(**TOKENS)
    assert plain.client_config()["https.ca.location"] == "probe", (
        "curl in the wheel knows Red Hat's files alone"
    )
    assert plain.spark_options()["kafka.sasl.jaas.config"].endswith(
        'required clientId="etl" clientSecret="hunter2";'
    )


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        pytest.param("sasl.password", "set sasl_password, which reaches both", id="has a field"),
        pytest.param("sasl.mechanisms", "set sasl_mechanism", id="the other name of it"),
        pytest.param("sasl.oauthbearer.client.secret", "set sasl_oauthbearer_client_secret", id="of tokens"),
        pytest.param("sasl.oauthbearer.method", "set sasl_mechanism", id="follows from it"),
        pytest.param("https.ca.pem", "What reaches both", id="the authority itself"),
        pytest.param("sasl.pasword", "What reaches both: .*sasl_password", id="misspelt"),
        pytest.param("sasl.kerberos.keytab", "What reaches both", id="Spark cannot be told"),
        pytest.param("ssl.ca.pem", "What reaches both", id="the file itself"),
        pytest.param("ssl_key", "What reaches both", id="of the C API"),
        pytest.param("enable.ssl.certificate.verification", "What reaches both", id="only here"),
    ],
)
def test_security_in_extra_is_refused_with_the_field_and_without_its_value(name, remedy):
    """It would reach librdkafka alone: Spark would read without it. The value may be a secret."""
    with pytest.raises(
        InvalidSettingError, match=f"{name} is refused: it would not reach Spark.*{remedy}"
    ) as refusal:
        KafkaSettings("localhost:9092", {name: "hunter2"})
    assert "hunter2" not in str(refusal.value)


def test_no_error_of_a_resource_shows_what_it_was_given():
    """A misspelt field, or a secret of the wrong type: pydantic would print the value."""
    for resource, wrong in (
        (kl.KafkaLivenessResource, {"sasl_pasword": "hunter2"}),
        (kl.KafkaLivenessResource, {"sasl_password": ["hunter2"]}),
        (kl.SparkConnectResource, {"remot": "sc://spark:15002/;token=hunter2"}),
    ):
        with pytest.raises(InvalidSettingError, match=r"did you mean \w+|is refused: wanted text") as refusal:
            resource(**wrong)
        assert "hunter2" not in str(refusal.value)


def test_no_repr_shows_a_secret(pem):
    """Of the resource, and of the settings it makes."""
    key = {
        "ssl_certificate_location": pem("cert.pem", block("CERTIFICATE")),
        "ssl_key_location": pem("key.pem", block("ENCRYPTED PRIVATE KEY")),
        "ssl_key_password": "hunter3",
    }
    for login in (LOGIN, TOKENS):
        kafka = kl.KafkaLivenessResource(bootstrap_servers="localhost:9092", **login, **key)
        for shown in (repr(kafka), str(kafka), repr(kafka.settings()), repr(kafka.security())):
            assert "etl" in shown
            assert "hunter" not in shown


def test_the_example_with_tokens_is_complete(example, monkeypatch):
    """What docs/security.md shows is all that a client needs.

    A real token server and broker are in tests/integration/test_oauth.py.
    """
    for name, value in {
        "KAFKA_BOOTSTRAP_SERVERS": "b:9092", "KAFKA_CLIENT_ID": "etl", "KAFKA_CLIENT_SECRET": "hunter2",
        "KAFKA_TOKEN_URL": "https://login.example/token",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert example("tokens").kafka.settings().security == Security(**TOKENS)


def test_a_secret_that_the_ui_would_show_is_refused_when_the_code_location_loads():
    """Dagster shows a literal on the resource's page; of a variable it shows the name."""
    for login, secret in ((LOGIN, "sasl_password"), (TOKENS, "sasl_oauthbearer_client_secret")):
        literal = dg.Definitions(resources={"kafka": kl.KafkaLivenessResource(**login)})
        with pytest.raises(InvalidSettingError, match=rf'{secret}=dg\.EnvVar\("ITS_NAME"\)') as refusal:
            literal.get_repository_def()
        assert "hunter2" not in str(refusal.value)
    named = {"bootstrap_servers": "localhost:9092", **LOGIN, "sasl_password": dg.EnvVar("KAFKA_PASSWORD")}
    variable = dg.Definitions(resources={"kafka": kl.KafkaLivenessResource(**named)})
    (page,) = RepositorySnap.from_def(variable.get_repository_def()).resources
    assert page.configured_values["sasl_password"].name == "KAFKA_PASSWORD"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("remote", "sc://spark:15002/;use_ssl=true;token=hunter2", id="its token"),
        pytest.param("remote", "sc://spark:15002/;x-api-key=hunter2", id="a header of a proxy"),
        pytest.param("remote", "sc://etl:hunter2@spark:15002", id="a login"),
        pytest.param("ui_url", "http://etl:hunter2@driver:4040", id="a login of the UI"),
    ],
)
def test_an_address_of_spark_with_a_secret_is_refused_when_the_code_location_loads(field, value):
    """The address is in the snapshot of the code location, which Dagster's UI shows."""
    literal = dg.Definitions(resources={"spark": kl.SparkConnectResource(**{field: value})})
    with pytest.raises(InvalidSettingError, match=rf'{field}=dg\.EnvVar\("ITS_NAME"\)') as refusal:
        RepositorySnap.from_def(literal.get_repository_def())
    assert "hunter2" not in str(refusal.value)
    variable = dg.Definitions(resources={"spark": kl.SparkConnectResource(**{field: dg.EnvVar("SPARK")})})
    (page,) = RepositorySnap.from_def(variable.get_repository_def()).resources
    assert page.configured_values[field].name == "SPARK"


def test_an_address_of_spark_without_a_secret_may_be_written_as_it_is():
    """What the UI then shows is no secret."""
    remotes = [
        "embedded",
        "sc://localhost:1",
        "sc://spark:15002/;use_ssl=true;user_id=etl;user_agent=etl;token=",
    ]
    for remote in remotes:
        plain = dg.Definitions(
            resources={"spark": kl.SparkConnectResource(remote=remote, ui_url="http://driver:4040")}
        )
        (page,) = RepositorySnap.from_def(plain.get_repository_def()).resources
        assert remote in str(page.configured_values["remote"])


def test_a_variable_is_looked_up_in_a_script_too(monkeypatch):
    """Dagster looks variables up in a run.

    Outside of one nobody would, and the name would be sent as the password.
    """
    every = {name: dg.EnvVar(f"OUR_{name}") for name in ("bootstrap_servers", *LOGIN)}
    for name, value in {"bootstrap_servers": "localhost:9092", **LOGIN}.items():
        monkeypatch.setenv(f"OUR_{name}", value)
    settings = kl.KafkaLivenessResource(**every).settings()
    assert (settings.bootstrap_servers, settings.security) == ("localhost:9092", Security(**LOGIN))
    monkeypatch.delenv("OUR_sasl_password")
    with pytest.raises(InvalidSettingError, match="OUR_sasl_password is not set"):
        kl.KafkaLivenessResource(**every).settings()


def test_the_embedded_broker_is_not_asked_for_what_it_cannot():
    """An address forgotten beside a login must not quietly mean a broker without one."""
    with pytest.raises(InvalidSettingError, match="set bootstrap_servers to the addresses of your brokers"):
        kl.KafkaLivenessResource(**LOGIN).settings()


def test_commands_take_librdkafkas_names_from_a_file():
    """``--command-config``.

    Comments and blanks are passed, values may hold ``=``, and extra settings are checked.
    """
    lines = [
        "# ours\n",
        "\n",
        "security.protocol = SASL_SSL\n",
        "sasl.mechanism=PLAIN\n",
        "sasl.username=etl\n",
    ]
    settings = KafkaSettings.from_properties("b:9092", [*lines, "sasl.password=a=b\n", "client.rack=one"])
    assert settings.security == Security("SASL_SSL", "PLAIN", "etl", sasl_password="a=b")
    assert settings.extra == {"client.rack": "one"}
    with pytest.raises(InvalidSettingError, match=r"sasl\.jaas\.config is refused"):
        KafkaSettings.from_properties("b:9092", ["sasl.jaas.config=hunter2"])
    tokens = Security(**TOKENS)
    lines = [f"{name}={value}" for name, value in tokens.client_config().items()]
    assert KafkaSettings.from_properties("b:9092", lines).security == tokens
    with pytest.raises(InvalidSettingError, match=r"sasl\.oauthbearer\.method is refused"):
        KafkaSettings.from_properties("b:9092", [*lines, "sasl.oauthbearer.method=default"])


def test_clients_are_kept_apart_by_their_login():
    """A new password makes a new connection, here and in Spark's pool of consumers.

    The old login is not used again.
    """
    one, same, other = (
        KafkaSettings("b:9092", {}, Security(**{**LOGIN, "sasl_password": password})) for password in "aab"
    )
    assert (one, hash(one)) == (same, hash(same))
    assert one != other
    assert (
        source_group_id(one.spark_options())
        == source_group_id(same.spark_options())
        != source_group_id(other.spark_options())
    )
