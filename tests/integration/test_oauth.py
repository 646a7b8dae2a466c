"""A broker that accepts tokens alone: members, readers and Spark renew theirs.

Refusals and outages have names.
"""

from __future__ import annotations

import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
import trustme
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.embedded import kafka as embedded_kafka
from kafka_liveness_dagster.embedded import processes, state
from kafka_liveness_dagster.embedded.processes import LOOPBACK, free_port
from kafka_liveness_dagster.kafka.errors import AccessRefusedError, BrokerUnreachableError
from kafka_liveness_dagster.spark.connect import session as spark_session
from kafka_liveness_dagster.spark.source import read_ranges
from tests.integration.token_server import AUDIENCE, TokenServer
from tests.timeouts import seconds
from tests.waiting import wait_for

# Everything that JAAS, Java and curl would like to take for something else
SECRET = "correcthorse\"\\; é$x'="
REDACTED = "correcthorse"
MODULE = "org.apache.kafka.common.security.oauthbearer"
REFUSED_SECONDS = seconds(20)
TOKEN_SECONDS = 6
BY_JAVA = "Java/"
"""The user agent of Spark's requests for tokens; librdkafka's is curl's, or none."""


class TokenBroker:
    """One broker with a listener for tokens, whose sessions end with the token.

    The plain one is the admin's.
    """

    def __init__(self, folder, tokens):
        self.tokens, self.home, self.port, self.admin_port = tokens, folder / "home", free_port(), free_port()
        state.create_home(self.home)
        launch = embedded_kafka.prepare_launch(self.home, self.admin_port, uuid4().hex, lambda _: None)
        file = self.home / "kafka" / "server.properties"
        told = file.read_text()
        for name in ("listeners", "advertised.listeners"):
            told = re.sub(rf"(?m)^({re.escape(name)}=.*)$", rf"\1,TOKENS://{LOOPBACK}:{self.port}", told)
        told = re.sub(r"(?m)^(listener.security.protocol.map=.*)$", r"\1,TOKENS:SASL_PLAINTEXT", told)
        mine = "listener.name.tokens.oauthbearer"
        file.write_text(f"""{told}
listener.name.tokens.sasl.enabled.mechanisms=OAUTHBEARER
{mine}.sasl.server.callback.handler.class={MODULE}.OAuthBearerValidatorCallbackHandler
{mine}.sasl.jaas.config={MODULE}.OAuthBearerLoginModule required;
{mine}.connections.max.reauth.ms=3600000
{mine}.sasl.oauthbearer.jwks.endpoint.url={tokens.keys_url}
{mine}.sasl.oauthbearer.expected.audience={AUDIENCE}
""")
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.keys_url}"
        java, *rest = launch.command
        log = self.home / "logs" / "kafka.log"
        self.child = processes.start_process(replace(launch, command=(java, allowed, *rest)), log)

        def answers():
            assert self.child.poll() is None, processes.last_lines(log)
            return embedded_kafka.is_broker_ready(self.admin_port)

        wait_for(answers, what="the broker answers", details=lambda: processes.last_lines(log), pause=0.05)
        self.admin = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{self.admin_port}", "log_level": 0})

    def stop(self):
        processes.end_processes([psutil.Process(self.child.pid)])

    def resource(self, **over):
        """What docs/security.md shows, with a value of ours for each field that a test changes."""
        return kl.KafkaLivenessResource(**{
            "bootstrap_servers": f"{LOOPBACK}:{self.port}", "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_client_id": "etl",
            "sasl_oauthbearer_client_secret": SECRET, "sasl_oauthbearer_token_endpoint_url": self.tokens.url,
            **over,
        })  # fmt: skip

    def make_topic(self, partitions=1):
        topic = f"orders-{uuid4().hex[:8]}"
        for future in self.admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            future.result()
        return topic

    def produce(self, topic, partition, first, end):
        producer = Producer({"bootstrap.servers": f"{LOOPBACK}:{self.admin_port}"})
        for number in range(first, end):
            producer.produce(topic, str(number).encode(), partition=partition)
        assert producer.flush(120) == 0

    def grants(self, *, java):
        return sum(agent.startswith(BY_JAVA) is java for agent, _ in self.tokens.grants)


@pytest.fixture(scope="module")
def tokens():
    found = TokenServer("etl", SECRET, seconds=TOKEN_SECONDS)
    yield found
    found.close()


@pytest.fixture(scope="module")
def guarded(tokens, tmp_path_factory):
    found = TokenBroker(tmp_path_factory.mktemp("guarded"), tokens)
    yield found
    found.stop()


def held(spark, batch, kafka):
    """The offsets of a batch as Spark reads them, by partition."""
    frame = read_ranges(spark, batch.ranges, kafka.settings().spark_options())
    return [(row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect()]


class ReadingMembers:
    """Members of one group, each in a thread of its own that reads with Spark and commits.

    In one thread the commit of one would wait for a rebalance that waits for the other.

    Attributes:
        committed: partition and offset of each record that was read, in a batch that was committed.
        owners: the members that have committed something.
    """

    def __init__(self, kafka, spark, topic, group):
        self._kafka, self._spark = kafka, spark
        self._settings = {"topics": [topic], "group_id": group}
        self._is_over = threading.Event()
        self._threads, self._ends = ThreadPoolExecutor(), []
        self.committed, self.owners = [], set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._threads.shutdown()
        self.check()

    def add(self):
        self._ends.append(self._threads.submit(self._consume, len(self._ends)))

    def check(self):
        """Raise the error of a member."""
        for end in self._ends:
            if end.done():
                end.result()

    def has_committed(self, count):
        self.check()
        return len(self.committed) >= count

    def _consume(self, number):
        with self._kafka.consumer(**self._settings) as consumer:
            while not self._is_over.is_set():
                if (batch := consumer.poll(0.3)) is not None:
                    found = held(self._spark, batch, self._kafka)
                    handed_over = {tp.partition for tp in consumer.commit(batch)}
                    self.committed += [record for record in found if record[0] not in handed_over]
                    self.owners.add(number)


def outlive(guarded, spark, lifetimes, kafka):
    """Read as one member, later two, for so many lifetimes of a token.

    Return what was read, and what there is. The broker ends each session with its token, so whoever
    has not renewed it is cut off.
    """
    topic, group, made = guarded.make_topic(2), f"etl-{uuid4().hex[:8]}", 0
    half = lifetimes * guarded.tokens.seconds / 2
    with ReadingMembers(kafka, spark, topic, group) as members:
        for owners in (1, 2):
            members.add()
            half_ends_at = time.monotonic() + half
            while time.monotonic() < half_ends_at or len(members.owners) < owners:
                for partition in (0, 1):
                    guarded.produce(topic, partition, made, made + 5)
                made += 5
                wait_for(
                    lambda wanted=2 * made: members.has_committed(wanted),
                    what="all records are committed",
                    details=lambda: (sorted(members.committed), members.owners),
                )
    assert {tp.partition: seen.committed for tp, seen in kafka.cluster().partition_states(
        group, [kl.OffsetRange(topic, partition, 0, 1).topic_partition for partition in (0, 1)]
    ).items()} == {0: made, 1: made}  # fmt: skip
    return sorted(members.committed), [(partition, offset) for partition in (0, 1) for offset in range(made)]


def test_members_and_spark_outlive_their_tokens_and_no_secret_is_shown(guarded, tokens, services, capfd):
    """Two lifetimes with a rebalance between them: each record is read once, and the secret is nowhere."""
    kafka = guarded.resource(
        sasl_oauthbearer_scope="api://a/.default b", sasl_oauthbearer_extensions="logicalCluster=l-1"
    )
    spark = spark_session.connect(services.spark_remote)
    got, there = outlive(guarded, spark, 2, kafka)
    assert got == there
    assert {scope for _, scope in tokens.grants} == {"api://a/.default b"}
    assert min(guarded.grants(java=True), guarded.grants(java=False)) >= 2

    frame = read_ranges(spark, [kl.OffsetRange("orders", 0, 2, 7)], kafka.settings().spark_options())
    plan = str(frame._plan.to_proto(spark.client))  # the text in Spark's UI and event log
    assert REDACTED in plan, "the plan carries the secret to Spark"
    seen = re.sub(spark.conf.get("spark.sql.redaction.string.regex"), "*", plan)
    log = Path(os.environ["KAFKA_LIVENESS_HOME"]) / "logs" / "spark.log"
    told = [seen, repr(kafka), repr(kafka.settings()), log.read_text(errors="replace"), *capfd.readouterr()]
    assert not [text for text in told if REDACTED in text]
    spark.stop()


@pytest.mark.certify
def test_ten_minutes_with_tokens_of_one_minute(guarded, tokens, services):
    """As above, with what token servers really issue at the least."""
    spark, tokens.seconds = spark_session.connect(services.spark_remote), 60
    try:
        got, there = outlive(guarded, spark, 10, guarded.resource())
    finally:
        tokens.seconds = TOKEN_SECONDS
    assert got == there
    spark.stop()


@pytest.mark.certify
def test_a_token_server_that_is_away_for_longer_than_a_token_lives(guarded, tokens, services):
    """Members and Spark go on when it is back; nobody is told that the login is refused."""
    spark, kafka, topic = (
        spark_session.connect(services.spark_remote),
        guarded.resource(),
        guarded.make_topic(),
    )
    guarded.produce(topic, 0, 0, 10)
    with kafka.consumer(topics=[topic], group_id=f"etl-{uuid4().hex[:8]}") as consumer:
        batch = consumer.poll(120)
        first = held(spark, batch, kafka)
        consumer.commit(batch)
        tokens.status = 503
        back_at = time.monotonic() + 1.5 * tokens.seconds
        guarded.produce(topic, 0, 10, 20)
        try:
            wait_for(lambda: time.monotonic() > back_at, what="all tokens have expired")
        finally:
            tokens.status = None
        batch = wait_for(lambda: consumer.poll(1), what="the member has news")
        second = held(spark, batch, kafka)
        consumer.commit(batch)
    assert first + second == [(0, offset) for offset in range(20)]
    spark.stop()


def test_a_refusal_names_the_token_server_or_the_broker(guarded, tokens):
    """In seconds, with who was refused by whom, and which setting to look at."""
    authority = trustme.CA()
    url = tokens.listen(authority.issue_cert(LOOPBACK))
    nobody = f"http://{LOOPBACK}:{free_port()}/token"

    def refused(over):
        started = time.monotonic()
        with pytest.raises((AccessRefusedError, BrokerUnreachableError)) as refusal:
            guarded.resource(**over).consumer(topics=["orders"], group_id="etl")
        assert time.monotonic() - started < REFUSED_SECONDS
        assert REDACTED not in str(refusal.value)
        return refusal.type, str(refusal.value)

    wrong = [
        {"sasl_oauthbearer_client_secret": f"no-{REDACTED}"},
        {"sasl_oauthbearer_token_endpoint_url": url},
        {"sasl_oauthbearer_token_endpoint_url": nobody},
    ]
    with ThreadPoolExecutor() as at_once:
        secret, certificate, silence = at_once.map(refused, wrong)
    tokens.audience = "another"
    try:
        token = refused({"sasl_oauthbearer_scope": "another audience"})
    finally:
        tokens.audience = AUDIENCE
    assert secret[0] is certificate[0] is token[0] is AccessRefusedError
    assert silence[0] is BrokerUnreachableError
    assert f"the token server at {tokens.url} refused client 'etl'" in secret[1]
    assert "Fix: check sasl_oauthbearer_client_id" in secret[1]
    assert f"no TLS with the token server at {url}" in certificate[1]
    assert "Fix: set https_ca_location" in certificate[1]
    assert f"the token server at {nobody} gave no token" in silence[1]
    assert (
        f"the broker at {LOOPBACK}:{guarded.port} refused client 'etl' (SASL_PLAINTEXT, OAUTHBEARER)"
        in token[1]
    )
    assert "sasl.oauthbearer.expected" in token[1]


def test_the_authority_of_the_token_server_is_told_to_both(guarded, tokens, services):
    """By https_ca_location: librdkafka has the path, and Java the content."""
    authority, file = trustme.CA(), guarded.home / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    url = tokens.listen(authority.issue_cert(LOOPBACK))
    kafka = guarded.resource(sasl_oauthbearer_token_endpoint_url=url, https_ca_location=str(file))
    topic = guarded.make_topic()
    guarded.produce(topic, 0, 0, 10)
    part = kl.OffsetRange(topic, 0, 2, 7)
    assert kafka.cluster().log_bounds([part.topic_partition]) == {part.topic_partition: (0, 10)}
    spark = spark_session.connect(services.spark_remote)
    rows = read_ranges(spark, [part], kafka.settings().spark_options()).select("offset").collect()
    assert [row["offset"] for row in rows] == list(range(2, 7))
    spark.stop()
