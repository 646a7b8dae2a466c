"""Texts over which librdkafka ends its process.

A child tries each wherever a user can write one, and lives.
"""

from __future__ import annotations

import json
import subprocess
import sys

CHILD = '''
import json, sys
from types import SimpleNamespace
from confluent_kafka import Consumer
import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.timeouts import BrokerLimits
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.kafka.admin import Cluster

class Offline(kl.KafkaLivenessResource):
    def cluster(self):
        return SimpleNamespace(broker_limits=lambda: BrokerLimits(6_000, 1_800_000))

def joins(**settings):
    """A client that joins, as the first poll makes it; and one that reads what is owed."""
    told = {"topics": ["orders"], "group_id": "etl", **settings}
    with Offline(bootstrap_servers="127.0.0.1:1").consumer(**told) as made:
        client = Consumer(made._kafka.member_config(made.settings, "test", made.timeouts))
        client.subscribe(list(made.settings.topics))
        client.poll(0)
        client.close()

def catches_up(group_id="etl", topic="orders"):
    kafka = kl.KafkaLivenessResource(bootstrap_servers="127.0.0.1:1")
    kafka.catch_up(group_id=group_id, ranges=[OffsetRange(topic, 0, 0, 1)]).close()
    client = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "etl"})
    client.assign([__import__("confluent_kafka").TopicPartition(topic, 0)])
    client.poll(0)
    client.close()

def looks(**settings):
    Cluster(kl.KafkaLivenessResource(**{"bootstrap_servers": "127.0.0.1:1", **settings}).settings())

ASKED = {
    "group": lambda text: joins(group_id=text),
    "group of the catch-up lane": lambda text: catches_up(group_id=text),
    "topic": lambda text: joins(topics=[text]),
    "topic of the catch-up lane": lambda text: catches_up(topic=text),
    "group_instance_id": lambda text: joins(membership=kl.Membership(group_instance_id=text)),
    "bootstrap_servers": lambda text: looks(bootstrap_servers=text or "?"),
    "extra": lambda text: looks(extra={"client.rack": text}),
    "name of extra": lambda text: looks(extra={text: "1"}),
    "a signal": lambda text: looks(extra={"internal.termination.signal": "9"}),
    "sasl_username": lambda text: looks(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN",
                                        sasl_username=text, sasl_password=text),
    "tokens": lambda text: looks(security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
                                 sasl_oauthbearer_client_id=text, sasl_oauthbearer_client_secret=text,
                                 sasl_oauthbearer_token_endpoint_url="http://127.0.0.1:1/",
                                 sasl_oauthbearer_scope=text,
                                 sasl_oauthbearer_extensions=text and "a=" + text),
    "ssl_ca_location": lambda text: looks(security_protocol="SSL", ssl_ca_location=text),
}
for text in json.load(sys.stdin):
    for where, ask in ASKED.items():
        print(f"{where} {text!a:.30} {len(text)}", end=" ", flush=True)
        try:
            ask(text)
            print("works", flush=True)
        except InvalidSettingError:
            print("refused", flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)
'''
TEXTS = [
    "", " ", "\t", "\v", "\0", "a\0b", "\0a", " a", "a\nb", "\ud800", "a\udfffb", "x" * 600, "x" * 70_000,
    "^(a", "ä", "😀", "%s%n", "..", "orders",
]  # fmt: skip


def test_no_text_ends_the_process():
    """Each works or is refused by name: a signal, an assertion or a bare error would end the child."""
    asked = [sys.executable, "-c", CHILD]
    told = subprocess.run(asked, input=json.dumps(TEXTS), capture_output=True, text=True, check=False)
    *_, last = told.stdout.splitlines()
    assert told.returncode == 0, f"ended by {told.returncode} at: {last}\n{told.stderr[-600:]}"
    outcomes = {line: line.rsplit(" ", 1)[1] for line in told.stdout.splitlines()}
    assert len(outcomes) == len(TEXTS) * CHILD.count(": lambda text: ")
    assert [line for line, outcome in outcomes.items() if outcome not in {"works", "refused"}] == []
    for where in ("group", "topic", "group_instance_id", "extra"):
        assert outcomes[f"{where} 'orders' 6 works"]
        assert outcomes[f"{where} '\\ud800' 1 refused"]
