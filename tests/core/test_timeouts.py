"""Budgets and timeouts (KIP-62): whatever is configured, the answer keeps the rules or says with numbers why not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.errors import InvalidSettingError, KafkaLivenessError
from kafka_liveness_dagster.core.timeouts import (
    MAX_BUDGET_SECONDS,
    BrokerLimits,
    Budget,
    RunBudgetSpentError,
    derive,
    first_budget,
)

APACHE = BrokerLimits(6_000, 1_800_000)
NOTHING = dict.fromkeys(["argument", "op_tag", "asset_metadata", "run_remaining", "default"])
SECONDS = st.none() | st.floats(-10, 100_000) | st.sampled_from([0.0, float("inf"), float("nan"), MAX_BUDGET_SECONDS])
TYPED_SECONDS = st.none() | st.floats(-10, 4_000)  # what a person types; not a number is another test
LIMITS = st.tuples(st.integers(100, 60_000), st.integers(0, 1_800_000)).map(
    lambda pair: BrokerLimits(pair[0], pair[0] + pair[1])
)


@pytest.mark.parametrize(
    ("given_seconds", "seconds", "source"),
    [
        pytest.param({"default": 300}, 300, "resource default", id="nobody said anything: the resource's default"),
        pytest.param(
            {"run_remaining": 900, "default": 300},
            900,
            "what is left of dagster/max_runtime",
            id="the run's own limit says more than a default",
        ),
        pytest.param(
            {"asset_metadata": 200, "run_remaining": 900, "default": 300}, 200, "asset metadata", id="metadata first"
        ),
        pytest.param({"op_tag": 100, "asset_metadata": 200}, 100, "op tag", id="a tag outranks metadata"),
        pytest.param({"argument": 50, "op_tag": 100}, 50, "argument", id="code outranks a tag"),
        pytest.param(
            {"argument": 120, "run_remaining": 45.5},
            45.5,
            "argument, capped by what is left of dagster/max_runtime",
            id="no batch outlives its run",
        ),
        pytest.param({"argument": 120, "run_remaining": 120}, 120, "argument", id="exactly enough is not a cap"),
        pytest.param({"default": 86_400}, 86_400, "resource default", id="24 h is the last that librdkafka takes"),
    ],
)
def test_the_first_hit_wins_and_the_run_caps_it(given_seconds, seconds, source):
    """Argument > op tag > asset metadata > what is left of the run > default; the run always caps."""
    budget = first_budget(**{**NOTHING, **given_seconds})
    assert (budget.seconds, budget.source) == (seconds, source)
    assert budget.capped == ("capped" in source)
    assert str(budget) == f"{seconds:g} s ({source})"


@pytest.mark.parametrize(
    ("given_seconds", "error", "words"),
    [
        pytest.param({}, InvalidSettingError, "no run budget.*Set max_batch_seconds", id="no budget is no default"),
        pytest.param({"argument": 0}, InvalidSettingError, r"0 s \(argument\) must be above 0", id="zero"),
        pytest.param({"op_tag": -1}, InvalidSettingError, r"-1 s \(op tag\)", id="negative"),
        pytest.param({"default": float("inf")}, InvalidSettingError, "inf s.*endless poll interval", id="endless"),
        pytest.param({"default": float("nan")}, InvalidSettingError, "nan s", id="not a number"),
        pytest.param({"op_tag": 86_401}, InvalidSettingError, r"86401 s.*at most 86400 s \(24 h\)", id="over 24 h"),
        pytest.param(
            {"run_remaining": 0, "argument": 60}, RunBudgetSpentError, "0 s past its dagster/max_runtime", id="spent"
        ),
        pytest.param({"run_remaining": -12.5}, RunBudgetSpentError, "12.5 s past", id="long over"),
    ],
)
def test_a_budget_that_means_nothing_is_refused(given_seconds, error, words):
    """No budget and a nonsensical one are errors with the number, its source and the remedy."""
    with pytest.raises(error, match=f"(?s){words}"):
        first_budget(**{**NOTHING, **given_seconds})


@given(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS)
def test_every_budget_is_finite_and_inside_its_run(argument, op_tag, asset_metadata, run_remaining, default):
    """0 < budget <= 24 h, never more than is left of the run, or a named error."""
    try:
        budget = first_budget(
            argument=argument,
            op_tag=op_tag,
            asset_metadata=asset_metadata,
            run_remaining=run_remaining,
            default=default,
        )
    except KafkaLivenessError as error:
        refused = str(error)
        assert "budget" in refused or "max_runtime" in refused
    else:
        assert 0 < budget.seconds <= MAX_BUDGET_SECONDS
        assert run_remaining is None or not budget.seconds > run_remaining


@pytest.mark.parametrize(
    ("budget", "session", "heartbeat", "limits", "milliseconds"),
    [
        pytest.param(300, None, None, APACHE, (10_000, 3_000, 300_000), id="KIP-62's defaults"),
        pytest.param(8, None, None, APACHE, (8_000, 2_666, 8_000), id="a short budget pulls the session down"),
        pytest.param(2, None, None, APACHE, (6_000, 2_000, 6_000), id="not below the broker; the larger one rules"),
        pytest.param(300, None, None, BrokerLimits(1_000, 5_000), (5_000, 1_666, 300_000), id="nor above the broker"),
        pytest.param(300, 45, None, APACHE, (45_000, 3_000, 300_000), id="Java's session since KIP-735"),
        pytest.param(300, 45, 15, APACHE, (45_000, 15_000, 300_000), id="a third exactly is allowed"),
        pytest.param(30, 30, None, APACHE, (30_000, 3_000, 30_000), id="session equals budget"),
    ],
)
def test_timeouts_by_example(budget, session, heartbeat, limits, milliseconds):
    """Session, heartbeat and process timeout of a member."""
    timeouts = derive(Budget(budget, "argument"), session_seconds=session, heartbeat_seconds=heartbeat, limits=limits)
    assert (timeouts.session_ms, timeouts.heartbeat_ms, timeouts.process_ms) == milliseconds


def test_timeouts_say_where_they_come_from():
    """Run metadata shows the derivation: the poll interval and who chose it."""
    text = str(derive(Budget(300, "op tag"), session_seconds=None, heartbeat_seconds=None, limits=APACHE))
    assert text.startswith("poll interval 300 s: op tag")


@pytest.mark.parametrize(
    ("budget", "session", "heartbeat", "words"),
    [
        pytest.param(300, 5, None, "5,000 ms is outside.*6,000 to 1,800,000 ms.*group.min/max", id="below the broker"),
        pytest.param(3000, 1801, None, "1,801,000 ms is outside.*6,000 to 1,800,000", id="above the broker"),
        pytest.param(20, 30, None, r"20 s \(argument\) is below the session timeout 30 s", id="budget under session"),
        pytest.param(300, 10, 5, "5,000 ms must be above 0 and at most.*3,333 of 10,000 ms", id="two beats a session"),
        pytest.param(300, 10, 0, "0 ms must be above 0", id="no heartbeat"),
        pytest.param(300, 10, -1, "-1,000 ms must be above 0", id="negative heartbeat"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(budget, session, heartbeat, words):
    """Each refusal names both numbers of the contradiction."""
    with pytest.raises(InvalidSettingError, match=f"(?s){words}"):
        derive(Budget(budget, "argument"), session_seconds=session, heartbeat_seconds=heartbeat, limits=APACHE)


def test_the_end_of_a_run_does_not_contradict_the_session():
    """A budget below the session is a mistake of the user's; one cut by the run's end is nobody's."""
    capped = Budget(5, "argument, capped by what is left of dagster/max_runtime", capped=True)
    timeouts = derive(capped, session_seconds=30, heartbeat_seconds=None, limits=APACHE)
    assert (timeouts.session_ms, timeouts.process_ms) == (30_000, 30_000)


@given(
    st.floats(0.001, MAX_BUDGET_SECONDS),
    st.booleans(),
    TYPED_SECONDS,
    TYPED_SECONDS,
    LIMITS,
)
def test_every_answer_keeps_every_rule(seconds, capped, session, heartbeat, limits):
    """Broker's limits, three heartbeats a session, process >= session, process >= budget; or an error with numbers."""
    budget = Budget(seconds, "argument", capped=capped)
    try:
        timeouts = derive(budget, session_seconds=session, heartbeat_seconds=heartbeat, limits=limits)
    except InvalidSettingError as error:
        refused = str(error)
        assert len(re.findall(r"\d", refused)) >= 2
    else:
        assert limits.min_session_ms <= timeouts.session_ms <= limits.max_session_ms
        assert 0 < 3 * timeouts.heartbeat_ms <= timeouts.session_ms
        assert timeouts.process_ms >= timeouts.session_ms
        assert timeouts.process_ms == max(timeouts.session_ms, round(seconds * 1000))
        assert timeouts.process_ms <= MAX_BUDGET_SECONDS * 1000
        assert timeouts.budget is budget


@given(st.floats(0.001, MAX_BUDGET_SECONDS), LIMITS)
def test_nothing_set_is_never_refused(seconds, limits):
    """Whoever sets only a budget always gets an answer: the defaults contradict nobody."""
    derive(Budget(seconds, "op tag"), session_seconds=None, heartbeat_seconds=None, limits=limits)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["session_seconds", "heartbeat_seconds"])
def test_what_is_no_number_is_refused_by_name(name, seconds):
    """A configuration file can say .inf and .nan: a named error, not Python's."""
    settings = {"session_seconds": None, "heartbeat_seconds": None, name: seconds}
    try:
        derive(Budget(300, "argument"), **settings, limits=APACHE)
    except KafkaLivenessError:
        return
