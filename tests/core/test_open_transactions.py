"""Records behind open transactions change the verdict on the lag only if a producer left one open."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.health import OpenTransaction, Severity, Verdict, with_open_transactions
from kafka_liveness_dagster.core.offsets import TopicPartition

FINE, WARNING, ERROR = Severity.FINE, Severity.WARNING, Severity.ERROR


def held(seconds, offsets=20, partition=3):
    return OpenTransaction(TopicPartition("orders", partition), 100, offsets, seconds)


@pytest.mark.parametrize(
    ("before", "transactions", "after"),
    [
        pytest.param(FINE, [held(899.9)], FINE, id="a producer may still end the transaction"),
        pytest.param(FINE, [held(None)], FINE, id="no timestamp in time"),
        pytest.param(FINE, [held(900.0)], WARNING, id="open for longer than any producer may keep it"),
        pytest.param(FINE, [held(3.0), held(1_200.0)], WARNING, id="one of two is open for too long"),
        pytest.param(WARNING, [held(900.0)], WARNING, id="a warning stays a warning"),
        pytest.param(ERROR, [held(900.0)], ERROR, id="an error stays an error"),
    ],
)
def test_a_transaction_left_open_is_a_warning_at_least(before, transactions, after):
    """All held back offsets are counted.

    The sentence changes only for a transaction that no producer will end.
    """
    verdict = with_open_transactions(Verdict(before, "lag 7", {"lag": 7}), transactions)
    assert verdict.severity is after
    assert verdict.numbers == {"lag": 7, "behind_open_transactions": 20 * len(transactions)}
    hanging = [one for one in transactions if one.is_hanging]
    assert verdict.message.startswith("lag 7")
    assert (verdict.message == "lag 7") is not bool(hanging)
    assert all(str(one) in verdict.message for one in hanging)


def test_without_an_open_transaction_the_verdict_is_returned_as_it_was():
    """No number is added when no records are held back."""
    lag = Verdict(WARNING, "lag 7", {"lag": 7})
    assert with_open_transactions(lag, []) is lag


def test_the_largest_hanging_transaction_is_named_first():
    """The sentence is cut after five partitions, so the smallest ones are left out."""
    hanging = [held(1_000.0, offsets=number + 1, partition=number) for number in range(6)]
    sentence = with_open_transactions(Verdict(FINE, "lag 7"), hanging).message
    assert sentence.startswith(
        "lag 7. 6 offsets of orders:5 wait behind a transaction that has been open at 100"
    )
    assert "orders:1 " in sentence
    assert "orders:0 " not in sentence
    assert "and 1 more" in sentence


def test_the_age_is_left_out_when_it_is_unknown():
    """A transaction whose timestamp was not read in time is not called hanging."""
    assert str(held(None)) == "20 offsets of orders:3 wait behind a transaction that has been open at 100"
    assert str(held(1_200.0)).endswith("has been open at 100 for 1,200 s")
