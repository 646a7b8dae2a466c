"""The catch-up commit log has many writers, the last one wins.

What is told is told again when another's write took it away.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kafka_liveness_dagster.core.commit_metadata import (
    CatchUpCommitMetadata,
    ExternalCommit,
    ExternalCommitError,
    GroupOrigin,
    LiveCommitMetadata,
    OwnerState,
)
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_state import PartitionState
from kafka_liveness_dagster.kafka.catch_up import commit_log
from kafka_liveness_dagster.kafka.catch_up.commit_log import CatchUpCommitLog
from kafka_liveness_dagster.kafka.errors import CommitRefusedError
from kafka_liveness_dagster.kafka.group_description import CommittedOffset
from kafka_liveness_dagster.kafka.settings import KafkaSettings

AT = TopicPartition("orders", 3)
LOG = logging.getLogger("kafka_liveness_dagster")
LOST = Span(70, 80)


class Broker:
    """Both commit logs of one partition; ``late`` writes of another run replace the next ones."""

    timed_out = False

    def __init__(self, late):
        mark = LiveCommitMetadata(OwnerState.RUNNING, "0badcafe", (Span(70, 120),), origin=GroupOrigin(0))
        self.facts_now = PartitionState(
            120,
            mark,
            80,
            log_end=120,
            catch_up_log=CatchUpCommitMetadata(origin=GroupOrigin(0), target="lake.shop.orders"),
        )
        self.late = late
        self.timed_out = self.is_closed = False

    def close(self):
        """As the client."""
        self.is_closed = True

    def partition_states(self, _group_id, _partitions):
        """As ``Cluster``."""
        return {AT: self.facts_now}

    def topic_ids(self, topics):
        """As ``Cluster``."""
        return dict.fromkeys(topics, "T2")

    def commit(self, offsets):
        """As ``Committer``."""
        before, (offset, text) = self.facts_now.catch_up_log, offsets[AT]
        after = before if self.late else CatchUpCommitMetadata.decode(offset, text)
        self.late = max(0, self.late - 1)
        self.facts_now = replace(self.facts_now, catch_up_log=after)


@pytest.fixture
def opened(monkeypatch):
    """A catch-up commit log, and the broker that it writes to: ``opened(late)``."""

    def make(late=0):
        broker = Broker(late)
        monkeypatch.setattr(commit_log, "create_client", lambda _kind, _config: broker)
        monkeypatch.setattr(commit_log, "Cluster", lambda _kafka: broker)
        monkeypatch.setattr(commit_log, "Committer", lambda *_, **__: broker)
        log = CatchUpCommitLog(KafkaSettings("127.0.0.1:1"), "orders-etl", "test", target="lake.shop.orders")
        return log, broker

    return make


@pytest.fixture
def told(opened):
    """The catch-up commit log after so many late writes of another run."""

    def tell(late):
        log, broker = opened(late)
        log.write_off({AT: (LOST,)})
        return broker.facts_now.catch_up_log

    return tell


@pytest.mark.parametrize("late", [0, 1, 3])
def test_what_was_told_lasts(told, late):
    """Done, and not in silence."""
    second = told(late)
    assert second.written_off == (LOST,)
    assert second.outstanding((Span(70, 120),)) == (Span(80, 120),)


def test_what_cannot_be_told_is_no_secret(told):
    """Who is always late raises: what was to be told stays owed."""
    with pytest.raises(CommitRefusedError, match="lost 5 writes to other runs"):
        told(99)


@pytest.mark.parametrize("late", [0, 1, 3])
def test_a_record_is_read_back_and_repeated_until_it_lasts(opened, late):
    """Another run's write may replace it: the range would be processed a second time."""
    log, broker = opened(late)
    log.mark_done([OffsetRange("orders", 3, 80, 120)])
    outstanding = broker.facts_now.catch_up_log.outstanding((Span(70, 120),))
    assert outstanding == (Span(70, 80),), "the record has to last"


@pytest.mark.parametrize("late", [0, 3])
def test_rows_that_were_found_missing_are_recorded(opened, late):
    """What is pending is not done any more; what was committed is missing.

    What is not committed comes anyway.
    """
    log, broker = opened(late)
    log.mark_done([OffsetRange("orders", 3, 80, 120)])
    log.mark_missing_rows([OffsetRange("orders", 3, 60, 90), OffsetRange("orders", 3, 110, 130)], LOG, {})
    second = broker.facts_now.catch_up_log
    assert second.missing == (Span(60, 70),)
    assert second.outstanding((Span(70, 120),)) == (Span(70, 90), Span(110, 120)), "missing rows are not done"


def test_a_deleted_log_gets_its_target_again(opened):
    """Without a target nothing is held against the table: what is missing would be forgotten."""
    log, broker = opened()
    broker.facts_now = replace(broker.facts_now, catch_up_log=CatchUpCommitMetadata())
    log.mark_missing_rows([OffsetRange("orders", 3, 60, 70)], LOG, {"orders": "T2"})
    assert broker.facts_now.catch_up_log.target == "lake.shop.orders"
    assert broker.facts_now.catch_up_log.missing == (Span(60, 70),)


@pytest.mark.parametrize("is_committed", [True, False], ids=["of another log", "without a commit"])
def test_nothing_is_recorded_of_rows_of_a_recreated_topic(opened, is_committed):
    """Its offsets begin again, and the broker has deleted its commits; new ones may be there."""
    log, broker = opened()
    known = {"orders": "T1"} if is_committed else {}
    committed = 120 if is_committed else None
    broker.facts_now = replace(
        broker.facts_now, committed=committed, live_metadata=None, catch_up_log=CatchUpCommitMetadata()
    )
    log.mark_missing_rows([OffsetRange("orders", 3, 60, 70)], LOG, known)
    assert broker.facts_now.catch_up_log == CatchUpCommitMetadata()


def test_missing_rows_whose_record_does_not_last_are_in_the_log(opened, caplog):
    """The run ends with the error that names them."""
    opened(99)[0].mark_missing_rows([OffsetRange("orders", 3, 60, 70)], LOG, {})
    assert (
        "could not be recorded in the catch-up commit log: other runs replaced its write 5 times"
        in caplog.text
    )


def test_a_broker_that_is_away_hides_no_missing_rows(opened, monkeypatch, caplog):
    """The run ends with the error that names them."""
    log, broker = opened()

    def refuse(*_):
        raise CommitRefusedError("away")

    monkeypatch.setattr(broker, "partition_states", refuse)
    log.mark_missing_rows([OffsetRange("orders", 3, 60, 70)], LOG, {})
    assert "The missing rows could not be recorded in the catch-up commit log" in caplog.text


def test_an_expired_log_is_renewed_as_it_was_read_last(opened, monkeypatch):
    """The offsets of a group without members expire; a live run that has read them commits them once more."""
    log, broker = opened()
    seen = CatchUpCommitMetadata(70, (Span(80, 90),), origin=GroupOrigin(0), target="lake.shop.orders")
    commits = {AT: CommittedOffset(seen.watermark, seen.encode())}
    written = []
    monkeypatch.setattr(broker, "commits", lambda _group, _partitions: dict(commits), raising=False)
    monkeypatch.setattr(broker, "commit", written.append)
    log.recommit([AT])
    commits.clear()
    log.recommit([AT])
    expected = {AT: (seen.watermark, seen.encode())}
    assert written == [expected, expected], "an expired log is renewed"


def test_the_catch_up_log_is_a_group_of_its_own(monkeypatch):
    """In the live group a commit of crash lag would move the live lane."""
    configs = []
    client = SimpleNamespace(close=lambda: None, commit=lambda offsets, asynchronous: offsets)
    monkeypatch.setattr(commit_log, "create_client", lambda _kind, config: configs.append(config) or client)
    CatchUpCommitLog(KafkaSettings("127.0.0.1:1"), "orders-etl", "test")
    assert [config["group.id"] for config in configs] == ["orders-etl.catch-up"]


@pytest.mark.parametrize("silent", [True, False])
def test_a_client_whose_broker_fell_silent_is_not_closed(opened, silent):
    """The close would wait for a commit that never returns."""
    log, broker = opened()
    broker.timed_out = silent
    log.close()
    assert broker.is_closed is not silent


# --- an external commit -------------------------------------------------------------------------------------

KCAT = ExternalCommit("second", 10**6, "")
OURS = CatchUpCommitMetadata(
    75, (Span(80, 90),), (Span(70, 75),), origin=GroupOrigin(0), target="lake.shop.orders"
)


def replaced(log, broker, *, was_read=True):
    """Commit like kcat in the catch-up commit log, which this process has used before, or has not."""
    if was_read:
        log.write({AT: (OURS, OURS)})
    broker.facts_now = replace(broker.facts_now, catch_up_log=CatchUpCommitMetadata(external=KCAT))


def test_a_record_replaces_an_external_commit(opened):
    """With what was written off.

    Done islands are not among it, the live lane may have them pending again since.
    """
    log, broker = opened()
    replaced(log, broker)
    log.mark_done([OffsetRange("orders", 3, 90, 120)])
    second = broker.facts_now.catch_up_log
    assert second == CatchUpCommitMetadata(70, (Span(90, 120),), OURS.written_off)
    assert (second.origin, second.target, second.external) == (OURS.origin, OURS.target, None)


def test_a_report_replaces_an_external_commit(opened):
    """Also where the offsets were reported before."""
    log, broker = opened()
    replaced(log, broker)
    log.write_off({AT: OURS.written_off})
    assert broker.facts_now.catch_up_log.written_off == OURS.written_off
    assert broker.facts_now.catch_up_log.external is None


@pytest.mark.parametrize(
    "write",
    [
        lambda log: log.mark_done([OffsetRange("orders", 3, 90, 120)]),
        lambda log: log.write_off({AT: (LOST,)}),
    ],
)
def test_what_was_never_read_is_not_written_over(opened, write):
    """Of a command, say: the error names the group, the partition, the text, and the command that helps."""
    log, broker = opened()
    replaced(log, broker, was_read=False)
    with pytest.raises(
        ExternalCommitError, match=r"the catch-up commit log of group orders-etl .* orders:3, offset 1000000"
    ):
        write(log)
    assert broker.facts_now.catch_up_log.external == KCAT, "nothing was written"


def test_an_external_commit_is_replaced_when_the_log_is_renewed(opened, monkeypatch):
    """By what this process has seen last."""
    log, broker = opened()
    replaced(log, broker)
    written = []
    monkeypatch.setattr(
        broker, "commits", lambda *_: {AT: CommittedOffset(KCAT.offset, KCAT.metadata)}, raising=False
    )
    monkeypatch.setattr(broker, "commit", written.append)
    assert log.recommit([AT]) == {AT: KCAT}
    assert written == [{AT: (OURS.watermark, OURS.encode())}]


@pytest.mark.parametrize(
    "write", [lambda log: log.recommit([AT]), lambda log: log.change_target([AT], "lake.sales.orders")]
)
def test_a_newer_versions_log_is_not_written_over(opened, monkeypatch, write):
    """It may have more than this version has read."""
    log, broker = opened()
    monkeypatch.setattr(broker, "commits", lambda *_: {AT: CommittedOffset(120, "kl3 done")}, raising=False)
    with pytest.raises(ExternalCommitError, match="newer version"):
        write(log)


def test_a_moved_table_is_not_written_over_an_external_commit(opened, monkeypatch):
    """It names no table; the next run of either lane writes its own."""
    log, broker = opened()
    monkeypatch.setattr(
        broker, "commits", lambda *_: {AT: CommittedOffset(KCAT.offset, KCAT.metadata)}, raising=False
    )
    assert log.change_target([AT], "lake.sales.orders") == {}
