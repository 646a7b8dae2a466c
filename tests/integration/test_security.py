"""A broker that asks for a login over TLS, and for leave.

Both lanes, Spark, and what is shown of the secrets.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import dagster as dg
import psutil
import pytest
import trustme
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli import main as cli
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.embedded import kafka as embedded_kafka
from kafka_liveness_dagster.embedded import processes, state
from kafka_liveness_dagster.embedded.processes import LOOPBACK, free_port
from kafka_liveness_dagster.kafka.errors import AccessRefusedError
from kafka_liveness_dagster.spark.connect import session as spark_session
from kafka_liveness_dagster.spark.source import read_ranges
from tests.timeouts import seconds
from tests.waiting import wait_for

# Everything that JAAS, Java and the shell would like to take for something else
PASSWORD = "hunter2\"\\; é$x'="
REDACTED = "hunter2"  # long enough to be in no word, name or digest of its own accord
REFUSED_SECONDS = seconds(20)  # two requests and a handshake; librdkafka alone would go on for ever
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"


def pkcs8(cert):
    """Its private key as Java reads it."""
    key = serialization.load_pem_private_key(cert.private_key_pem.bytes(), None)
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*pem)


class SecuredBroker:
    """One broker with a listener for SASL over TLS and one for client certificates.

    The plain one is the admin's.
    """

    def __init__(self, folder):
        self.folder, self.home = folder, folder / "home"
        self.admin_port, sasl, mutual = free_port(), free_port(), free_port()
        self.sasl, self.mutual = f"{LOOPBACK}:{sasl}", f"{LOOPBACK}:{mutual}"
        self._certify()
        self.other_ca_file = self.file("other-ca.pem", trustme.CA().cert_pem.bytes())
        self.secrets = [REDACTED, Path(self.key_file).read_text().splitlines()[1][:40]]
        self._configure(sasl, mutual)
        self._start()
        self.admin = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{self.admin_port}", "log_level": 0})
        self._users()

    def rotate(self):
        """Another authority, other certificates and keys in the same files.

        The broker begins anew with them.
        """
        self.stop()
        self._certify()
        self._start()

    def stop(self):
        processes.end_processes([psutil.Process(self.child.pid)])

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return str(path)

    def resource(self, **over):
        """What the docs' example gives, with a value of ours for each field that a test changes."""
        return kl.KafkaLivenessResource(**{
            "bootstrap_servers": self.sasl, "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "etl", "sasl_password": PASSWORD,
            "ssl_ca_location": self.ca_file, **over,
        })  # fmt: skip

    def by_certificate(self):
        return kl.KafkaLivenessResource(
            bootstrap_servers=self.mutual, security_protocol="SSL", ssl_ca_location=self.ca_file,
            ssl_certificate_location=self.cert_file, ssl_key_location=self.key_file,
        )  # fmt: skip

    def make_topic(self, group):
        """A topic, and the leave that the docs ask for; and to write, for the test's own producer."""
        topic = f"orders-{uuid4().hex[:8]}"
        may = {
            (ResourceType.TOPIC, topic): (AclOperation.READ, AclOperation.WRITE),
            (ResourceType.GROUP, group): (AclOperation.READ,),
            (ResourceType.GROUP, f"{group}.catch-up"): (AclOperation.READ,),
        }
        self._done(self.admin.create_topics([NewTopic(topic, 1, 1)]))
        rules = [(*of, operation) for of, operations in may.items() for operation in operations]
        self.allow(*((kind, name, ResourcePatternType.LITERAL, operation) for kind, name, operation in rules))
        return topic

    def allow(self, *rules):
        """Let everybody who has logged in do this."""
        told = [
            AclBinding(*of, "User:*", "*", operation, AclPermissionType.ALLOW) for *of, operation in rules
        ]
        self._done(self.admin.create_acls(told))

    def withdraw(self, kind, name):
        """Take back what everybody may do with it."""
        anything = AclBindingFilter(
            kind, name, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        self._done(dict(enumerate(self.admin.delete_acls([anything]).values())))

    def produce(self, topic, first, end):
        producer = Producer(self.resource().settings().client_config("producer"))
        for number in range(first, end):
            producer.produce(topic, str(number).encode(), partition=0)
        assert producer.flush(120) == 0

    def _certify(self):
        ca = trustme.CA()
        server, client = ca.issue_cert(LOOPBACK), ca.issue_cert("etl@example.com", common_name="etl")
        self.file("server.pem", pkcs8(server) + b"".join(pem.bytes() for pem in server.cert_chain_pems))
        self.ca_file = self.file("ca.pem", ca.cert_pem.bytes())
        self.cert_file = self.file("client.pem", client.cert_chain_pems[0].bytes())
        self.key_file = self.file("client.key", pkcs8(client))

    def _configure(self, sasl, mutual):
        state.create_home(self.home)
        self.launch = embedded_kafka.prepare_launch(self.home, self.admin_port, uuid4().hex, lambda _: None)
        file = self.home / "kafka" / "server.properties"
        told = file.read_text()
        listeners = f",SASL://{LOOPBACK}:{sasl},MUTUAL://{LOOPBACK}:{mutual}"
        for name in ("listeners", "advertised.listeners"):
            told = re.sub(rf"(?m)^({re.escape(name)}=.*)$", rf"\1{listeners}", told)
        told = re.sub(r"(?m)^(listener.security.protocol.map=.*)$", r"\1,SASL:SASL_SSL,MUTUAL:SSL", told)
        file.write_text(f"""{told}
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.sasl.plain.sasl.jaas.config={PLAIN_LOGIN} user_etl="plain-{REDACTED}";
listener.name.sasl.scram-sha-512.sasl.jaas.config={SCRAM_LOGIN};
listener.name.mutual.ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={self.folder}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={self.ca_file}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
""")

    def _start(self):
        log = self.home / "logs" / "kafka.log"
        self.child = processes.start_process(self.launch, log)

        def answers():
            assert self.child.poll() is None, processes.last_lines(log)
            return embedded_kafka.is_broker_ready(self.admin_port)

        wait_for(answers, what="the broker answers", details=lambda: processes.last_lines(log), pause=0.05)

    def _users(self):
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion("etl", scram, PASSWORD.encode())
        self._done(self.admin.alter_user_scram_credentials([user]))

    def _done(self, futures):
        for future in futures.values():
            future.result()


@pytest.fixture(scope="module")
def secured(services, tmp_path_factory):
    """The broker, for all tests of this module."""
    found = SecuredBroker(tmp_path_factory.mktemp("secured"))
    yield found
    found.stop()


@pytest.fixture
def lake(table, rows):
    """A table that does not exist yet, and what it holds when asked."""
    return table, lambda: [row["offset"] for row in rows(table)]


@pytest.fixture
def shown(example, secured, services, monkeypatch):
    """The example of docs/security.md, and what its variables are here."""
    for name, value in {
        "KAFKA_BOOTSTRAP_SERVERS": secured.sasl, "KAFKA_USERNAME": "etl", "KAFKA_PASSWORD": PASSWORD,
        "KAFKA_CA_FILE": secured.ca_file, "SPARK_REMOTE": services.spark_remote,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return example("login")


def test_both_lanes_and_spark_log_in_and_no_secret_is_shown(shown, like, secured, lake, capfd):
    """A crash, then both lanes in Dagster: the table is exact, and nowhere is the password."""
    kafka, group, (table, offsets) = shown.kafka, f"etl-{uuid4().hex[:8]}", lake
    topic = secured.make_topic(group)
    secured.produce(topic, 0, 40)
    settings = {"topics": [topic], "group_id": group, "enable_parallel_rebalance": True}
    with pytest.raises(ZeroDivisionError), kafka.consumer(**settings) as consumer:
        assert [str(r) for r in consumer.poll(120).ranges] == [f"p0:{topic}:0-40"]
        raise ZeroDivisionError
    with kafka.consumer(**settings) as consumer:
        wait_for(lambda: consumer.poll(0.2) is None and consumer.position(topic, 0) == 40)
    secured.produce(topic, 40, 50)

    asset = like(shown.orders, table=table, idle_seconds=0.5, **settings)
    defs = dg.Definitions.merge(asset.definitions, dg.Definitions(resources=shown.defs.resources))
    key = f"p0:{topic}:0-40"
    told = [repr(kafka), repr(kafka.settings())]
    with dg.DagsterInstance.local_temp(overrides={"telemetry": {"enabled": False}}) as instance:
        instance.add_dynamic_partitions("orders_crash_lag", [key])
        for job, chosen in (("orders_job", {}), ("orders_crash_lag_job", {"partition_key": key})):
            run = defs.resolve_job_def(job).execute_in_process(instance=instance, **chosen)
            assert run.success
            told += [repr(entry) for entry in instance.all_logs(run.run_id)]
            told.append(repr(instance.get_run_by_id(run.run_id)))
    assert offsets() == list(range(50))

    lines = kafka.security().client_config().items()
    config = secured.file("client.properties", "".join(f"{name}={value}\n" for name, value in lines).encode())
    asked = ["status", group, "--bootstrap-servers", secured.sasl, "--command-config", config, "--json"]
    status = CliRunner().invoke(cli.main, asked, catch_exceptions=False)
    (seen,) = json.loads(status.output)["partitions"]
    assert (seen["committed"], seen["pending_offsets"]) == (50, 0)
    told.append(status.output)

    on_the_page = serialize_value(RepositorySnap.from_def(defs.get_repository_def()))
    assert "KAFKA_PASSWORD" in on_the_page, "Dagster's UI names the variable"
    log = Path(os.environ["KAFKA_LIVENESS_HOME"]) / "logs" / "spark.log"
    told += [on_the_page, log.read_text(errors="replace"), *capfd.readouterr()]
    assert not [text for text in told if any(secret in text for secret in secured.secrets)]


def test_each_way_to_log_in_reads_the_same_partition_and_plans_are_shown_without_secrets(secured, services):
    """Another login is another pool of consumers.

    It is not refused for differing, which would print both secrets.
    """
    group = f"etl-{uuid4().hex[:8]}"
    topic = secured.make_topic(group)
    secured.produce(topic, 0, 10)
    spark, out = spark_session.connect(services.spark_remote), io.StringIO()
    for kafka in (
        secured.resource(),
        secured.resource(sasl_mechanism="PLAIN", sasl_password=f"plain-{REDACTED}"),
        secured.by_certificate(),
    ):
        assert kafka.cluster().log_bounds([kl.OffsetRange(topic, 0, 0, 10).topic_partition])
        options = kafka.settings().spark_options()
        frame = read_ranges(spark, [kl.OffsetRange(topic, 0, 2, 7)], options)
        assert [row["offset"] for row in frame.select("offset").collect()] == list(range(2, 7))
        with contextlib.redirect_stdout(out):
            frame.explain(extended=True)
        plan = str(frame._plan.to_proto(spark.client))  # the text in Spark's UI and event log
        secrets = [secret for secret in secured.secrets if secret in plan]
        assert secrets, "the plan carries the secret to Spark"
        seen = re.sub(spark.conf.get("spark.sql.redaction.string.regex"), "*", plan)
        assert not [secret for secret in secrets if secret in seen]
    with contextlib.redirect_stdout(out):
        # As if options were shown
        spark.sql("""SELECT 'LoginModule required password="hunter2"' AS a""").explain()
    spark.conf.set("spark.sql.redaction.string.regex", "the server's own")
    spark_session._hide_secrets(spark)
    assert spark.conf.get("spark.sql.redaction.string.regex").startswith(
        "the server's own|(?:LoginModule required|"
    )
    spark.stop()
    assert "kafka" in out.getvalue(), "the plans are there"
    assert not [secret for secret in secured.secrets if secret in out.getvalue()]


def test_commands_log_in_and_say_which_rights_they_lack(secured, services):
    """The doctor takes what it may not ask for no answer, and timeline makes and removes what is its own."""
    group, names = f"etl-{uuid4().hex[:8]}", "timeline-"
    topic = secured.make_topic(group)
    lines = secured.resource().security().client_config().items()
    config = secured.file("etl.properties", "".join(f"{name}={value}\n" for name, value in lines).encode())
    where = ["--bootstrap-servers", secured.sasl, "--command-config", config]
    with secured.resource().consumer(topics=[topic], group_id=group) as consumer:
        assert consumer.poll(1) is None

    def asked():
        words = ["doctor", *where, "--spark", services.spark_remote, "--group", group, "--json"]
        told = CliRunner().invoke(cli.main, words, catch_exceptions=False).output
        assert not [secret for secret in secured.secrets if secret in told]
        found = json.loads(told)["findings"]
        return {
            (one["area"], one["check"]): one for one in found if one["area"] not in {"dagster", "location"}
        }

    before = asked()
    assert before["kafka", "brokers"]["message"].endswith("SASL_SSL as 'etl'")
    lacks = {at: one["fix"] for at, one in before.items() if one["outcome"] == "unknown"}
    assert set(lacks) >= {
        ("kafka", "settings"),
        ("kafka", "offsets topic"),
        (f"topic {topic}", "settings"),
    }, lacks
    assert "needs DESCRIBE_CONFIGS on the cluster" in lacks["kafka", "settings"]
    assert f"needs DESCRIBE_CONFIGS on topic {topic}" in lacks[f"topic {topic}", "settings"]
    anything, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    secured.allow(
        (ResourceType.BROKER, "kafka-cluster", anything, AclOperation.DESCRIBE_CONFIGS),
        *(
            (ResourceType.TOPIC, "*", anything, may)
            for may in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
        ),
        (ResourceType.GROUP, group, anything, AclOperation.DESCRIBE_CONFIGS),
        *((kind, names, prefixed, AclOperation.ALL) for kind in (ResourceType.TOPIC, ResourceType.GROUP)),
    )
    assert [at for at, one in asked().items() if one["outcome"] == "unknown"] == []

    short = ["--session=1.5", "--poll-interval=3", "--stall=6"]
    played = CliRunner().invoke(cli.main, ["timeline", *where, *short], catch_exceptions=False)
    assert "This is the timeline of KIP-62: " in played.output, "it was played to its end, in time or not"
    assert not [secret for secret in secured.secrets if secret in played.output]
    assert not [name for name in secured.admin.list_topics(timeout=60).topics if name.startswith(names)]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (ResourceType.TOPIC, "TOPIC_AUTHORIZATION_FAILED|user 'etl' lacks the right READ"),
        (ResourceType.GROUP, "GROUP_AUTHORIZATION_FAILED"),
    ],
)
def test_rights_that_are_withdrawn_end_the_run_by_name(secured, kind, says):
    """While it is at work.

    Nothing more is committed, and who looks at the group or begins anew is told, too.
    """
    group = f"etl-{uuid4().hex[:8]}"
    topic = secured.make_topic(group)
    kafka, tp = secured.resource(), kl.OffsetRange(topic, 0, 0, 10).topic_partition
    settings = {"topics": [topic], "group_id": group}
    secured.produce(topic, 0, 10)
    with (
        pytest.raises(KafkaLivenessError, match=says),
        kafka.consumer(**settings, max_poll_records=4) as consumer,
    ):
        consumer.commit(consumer.poll(120))
        for name in (topic, "*") if kind is ResourceType.TOPIC else (group,):
            secured.withdraw(kind, name)

        def goes_on():
            if (batch := consumer.poll(1)) is not None:
                consumer.commit(batch)

        wait_for(goes_on, what="the run ends by the refusal")
    with pytest.raises(KafkaLivenessError, match=says):
        kafka.cluster().partition_states(group, kafka.cluster().partitions([topic]))
    with pytest.raises(KafkaLivenessError, match=says), kafka.consumer(**settings) as consumer:
        consumer.poll(120)
    rest = ((ResourceType.TOPIC, topic, AclOperation.READ), (ResourceType.GROUP, group, AclOperation.READ))
    secured.allow(*((what, name, ResourcePatternType.LITERAL, may) for what, name, may in rest))
    assert kafka.cluster().partition_states(group, [tp])[tp].committed < 10


def test_a_refusal_is_a_named_error_in_time(secured):
    """In seconds, with who was refused or what is not trusted; librdkafka by itself would try for ever."""

    def refused(kafka):
        started = time.monotonic()
        with pytest.raises(AccessRefusedError) as refusal:
            kafka.consumer(topics=["orders"], group_id="etl")
        return str(refusal.value), time.monotonic() - started

    wrong = [
        secured.resource(sasl_password=f"wrong-{REDACTED}"),
        secured.resource(ssl_ca_location=secured.other_ca_file),
    ]
    with ThreadPoolExecutor() as at_once:
        (password, first), (authority, second) = at_once.map(refused, wrong)
    assert f"the broker at {secured.sasl} refused user 'etl' (SASL_SSL, SCRAM-SHA-512)" in password
    assert "Fix: check sasl_username and sasl_password" in password
    assert REDACTED not in password
    assert "certificate verify failed" in authority
    assert "Fix: set ssl_ca_location" in authority
    assert max(first, second) < REFUSED_SECONDS


def test_certificates_that_are_renewed_in_their_files_are_taken_up(tmp_path):
    """The sensor's process lives for weeks: what it looks with is made anew.

    A live run ends with the reason.
    """
    secured, group = SecuredBroker(tmp_path), f"etl-{uuid4().hex[:8]}"
    try:
        topic = secured.make_topic(group)
        secured.produce(topic, 0, 10)
        tp = kl.OffsetRange(topic, 0, 0, 10).topic_partition
        before = secured.by_certificate().cluster().partition_states(group, [tp])
        with secured.by_certificate().consumer(topics=[topic], group_id=group) as consumer:
            consumer.commit(consumer.poll(120))
            secured.rotate()
            with pytest.raises(AccessRefusedError, match="certificate verify failed"):
                wait_for(lambda: consumer.poll(1), what="the consumer meets the new certificate")
        after = secured.by_certificate().cluster().partition_states(group, [tp])
        assert (before[tp].committed, after[tp].committed) == (None, 10)
    finally:
        secured.stop()
