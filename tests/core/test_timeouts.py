"""Budgets and timeouts (KIP-62).

Whatever is configured, the answer keeps the rules or says with numbers why not.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.errors import InvalidSettingError, KafkaLivenessError
from kafka_liveness_dagster.core.timeouts import (
    MAX_BUDGET_SECONDS,
    BrokerLimits,
    ConsumerGroupConfig,
    MaxRuntimeReachedError,
    RunBudget,
    check_request_timeout,
    derive_timeouts,
    resolve_budget,
)

APACHE = BrokerLimits(6_000, 1_800_000)
KIP_848 = ConsumerGroupConfig(45_000, 5_000)  # the broker's defaults
NOTHING = dict.fromkeys(["argument", "op_tag", "asset_metadata", "run_remaining", "default"])
SECONDS = (
    st.none()
    | st.floats(-10, 100_000)
    | st.sampled_from([0.0, float("inf"), float("nan"), MAX_BUDGET_SECONDS])
)
TYPED_SECONDS = st.none() | st.floats(-10, 4_000)  # what a person types; not a number is another test
LIMITS = st.tuples(st.integers(100, 60_000), st.integers(0, 1_800_000)).map(
    lambda pair: BrokerLimits(pair[0], pair[0] + pair[1])
)
MILLISECONDS = st.integers(-10, 200_000_000)  # 55 hours
ANY_LIMITS = st.builds(BrokerLimits, MILLISECONDS, MILLISECONDS)
ANY_GROUP = st.builds(ConsumerGroupConfig, MILLISECONDS, MILLISECONDS)
USUAL_GROUP = st.builds(ConsumerGroupConfig, st.integers(1_000, 60_000), st.integers(1, 20_000))


@pytest.mark.parametrize(
    ("given_seconds", "seconds", "source"),
    [
        pytest.param(
            {"default": 300},
            300,
            "default_max_batch_seconds of the Kafka resource",
            id="nobody said anything: the resource's default",
        ),
        pytest.param(
            {"run_remaining": 900, "default": 300},
            900,
            "the rest of dagster/max_runtime",
            id="the run's own limit says more than a default",
        ),
        pytest.param(
            {"asset_metadata": 200, "run_remaining": 900, "default": 300},
            200,
            "max_batch_seconds of the asset",
            id="metadata first",
        ),
        pytest.param(
            {"op_tag": 100, "asset_metadata": 200},
            100,
            "op tag kafka_liveness/max_batch_seconds",
            id="a tag outranks metadata",
        ),
        pytest.param(
            {"argument": 50, "op_tag": 100},
            50,
            "argument max_batch_seconds",
            id="code outranks a tag",
        ),
        pytest.param(
            {"argument": 120, "run_remaining": 45.5},
            45.5,
            "argument max_batch_seconds, capped by the rest of dagster/max_runtime",
            id="no batch outlives its run",
        ),
        pytest.param(
            {"argument": 120, "run_remaining": 120},
            120,
            "argument max_batch_seconds",
            id="exactly enough is not a cap",
        ),
        pytest.param(
            {"default": 86_400},
            86_400,
            "default_max_batch_seconds of the Kafka resource",
            id="24 h is the last that librdkafka takes",
        ),
    ],
)
def test_the_first_hit_wins_and_the_run_caps_it(given_seconds, seconds, source):
    """Argument > op tag > asset metadata > what is left of the run > default; the run always caps."""
    budget = resolve_budget(**{**NOTHING, **given_seconds})
    assert (budget.seconds, budget.source) == (seconds, source)
    assert budget.is_capped == ("capped" in source)
    assert str(budget) == f"{seconds:g} s ({source})"


@pytest.mark.parametrize(
    ("given_seconds", "error", "words"),
    [
        pytest.param(
            {}, InvalidSettingError, "no run budget.*Fix: set max_batch_seconds", id="no budget is no default"
        ),
        pytest.param(
            {"argument": 0},
            InvalidSettingError,
            r"0 s \(argument max_batch_seconds\) must be above 0",
            id="zero",
        ),
        pytest.param({"op_tag": -1}, InvalidSettingError, r"-1 s \(op tag", id="negative"),
        pytest.param(
            {"default": float("inf")}, InvalidSettingError, "inf s.*longer poll interval", id="endless"
        ),
        pytest.param({"default": float("nan")}, InvalidSettingError, "nan s", id="not a number"),
        pytest.param(
            {"argument": 2_147_483.647},
            InvalidSettingError,
            r"2,147,483.647 s \(argument max_batch_seconds\).*Integer.MAX_VALUE "
            r"\(2,147,483,647 ms, 24.9 days\).*longest healthy batch",
            id="Kafka Streams' longer poll interval, written as seconds",
        ),
        pytest.param(
            {"asset_metadata": 300_000},
            InvalidSettingError,
            "300,000 s.*set max_batch_seconds to the sec",
            id="no ms",
        ),
        pytest.param(
            {"op_tag": 86_401}, InvalidSettingError, r"86,401 s.*at most 86,400 s \(24 h\)", id="over 24 h"
        ),
        pytest.param(
            {"run_remaining": 0, "argument": 60},
            MaxRuntimeReachedError,
            "0 s past its dagster/max_runtime",
            id="spent",
        ),
        pytest.param({"run_remaining": -12.5}, MaxRuntimeReachedError, "12.5 s past", id="long over"),
    ],
)
def test_a_budget_that_means_nothing_is_refused(given_seconds, error, words):
    """No budget and a nonsensical one are errors with the number, its source and the remedy."""
    with pytest.raises(error, match=f"(?s){words}"):
        resolve_budget(**{**NOTHING, **given_seconds})


@given(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS)
def test_every_budget_is_finite_and_inside_its_run(argument, op_tag, asset_metadata, run_remaining, default):
    """0 < budget <= 24 h, never more than is left of the run, or a named error."""
    try:
        budget = resolve_budget(
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


def derived(budget, *, session=None, heartbeat=None, limits=APACHE, group=None):
    """Timeouts of a budget in seconds that came as an argument."""
    budget = RunBudget(budget, "argument max_batch_seconds")
    return derive_timeouts(
        budget, session_seconds=session, heartbeat_seconds=heartbeat, limits=limits, group=group
    )


@pytest.mark.parametrize(
    ("budget", "session", "heartbeat", "limits", "milliseconds"),
    [
        pytest.param(300, None, None, APACHE, (10_000, 3_000, 300_000), id="KIP-62's defaults"),
        pytest.param(
            8, None, None, APACHE, (8_000, 2_666, 8_000), id="a short budget pulls the session down"
        ),
        pytest.param(
            2, None, None, APACHE, (6_000, 2_000, 6_000), id="not below the broker; the larger one rules"
        ),
        pytest.param(
            300, None, None, BrokerLimits(1_000, 5_000), (5_000, 1_666, 300_000), id="nor above the broker"
        ),
        pytest.param(300, 45, None, APACHE, (45_000, 3_000, 300_000), id="Java's session since KIP-735"),
        pytest.param(300, 45, 15, APACHE, (45_000, 15_000, 300_000), id="a third exactly is allowed"),
        pytest.param(30, 30, None, APACHE, (30_000, 3_000, 30_000), id="session equals budget"),
        pytest.param(
            30, 45, None, APACHE, (45_000, 3_000, 45_000), id="a budget below the session is raised to it"
        ),
    ],
)
def test_timeouts_by_example(budget, session, heartbeat, limits, milliseconds):
    """Session, heartbeat and process timeout of a member."""
    timeouts = derived(budget, session=session, heartbeat=heartbeat, limits=limits)
    assert (timeouts.session_timeout_ms, timeouts.heartbeat_ms, timeouts.process_timeout_ms) == milliseconds


@pytest.mark.parametrize(
    ("budget", "milliseconds"),
    [
        pytest.param(300, (45_000, 5_000, 300_000), id="the budget is the process timeout, as ever"),
        pytest.param(30, (45_000, 5_000, 45_000), id="a short one cannot pull the broker's session down"),
        pytest.param(45, (45_000, 5_000, 45_000), id="equal"),
    ],
)
def test_under_kip_848_session_and_heartbeat_are_the_brokers(budget, milliseconds):
    """The group's config is taken as it is.

    The broker's limits of the classic protocol mean nothing there.
    """
    timeouts = derived(budget, limits=BrokerLimits(1, 2), group=KIP_848)
    assert (timeouts.session_timeout_ms, timeouts.heartbeat_ms, timeouts.process_timeout_ms) == milliseconds


@pytest.mark.parametrize(("group", "protocol"), [(None, "classic"), (KIP_848, "consumer")])
def test_the_protocol_says_which_settings_may_be_sent(group, protocol):
    """Session and heartbeat are sent on the classic protocol alone."""
    assert derived(300, group=group).protocol == protocol


@pytest.mark.parametrize(
    ("budget", "settings", "text"),
    [
        pytest.param(
            300,
            {},
            "process timeout 300 s, from argument max_batch_seconds; session timeout 10 s and heartbeat "
            "every 3 s, by default",
            id="as it was said",
        ),
        pytest.param(
            2,
            {},
            (
                "process timeout 6 s, raised to the session timeout from 2 s (argument max_batch_seconds); "
                "session timeout 6 s and heartbeat every 2 s, by default"
            ),
            id="classic: the broker takes no shorter session",
        ),
        pytest.param(
            30,
            {"group": KIP_848},
            "process timeout 45 s, raised to the session timeout from 30 s (argument max_batch_seconds); "
            "session timeout 45 s and heartbeat every 5 s, from the group's config on the broker",
            id="KIP-848",
        ),
        pytest.param(
            300,
            {"session": 12.0, "heartbeat": 2.0},
            "process timeout 300 s, from argument max_batch_seconds; session timeout 12 s and heartbeat "
            "every 2 s, from session_timeout_seconds and heartbeat_interval_seconds of the Kafka resource",
            id="set by the user",
        ),
    ],
)
def test_timeouts_say_where_they_come_from(budget, settings, text):
    """Run metadata shows the derivation: the process timeout, its setting, and what raised it."""
    assert str(derived(budget, **settings)) == text


@pytest.mark.parametrize(
    ("budget", "session", "heartbeat", "words"),
    [
        pytest.param(
            300, 5, None, "5,000 ms is outside.*6,000 to 1,800,000 ms.*group.min/max", id="below the broker"
        ),
        pytest.param(3000, 1801, None, "1,801,000 ms is outside.*6,000 to 1,800,000", id="above the broker"),
        pytest.param(
            300, 10, 5, "5,000 ms must be above 0 and at most.*3,333 of 10,000 ms", id="two beats a session"
        ),
        pytest.param(300, 10, 0, "0 ms must be above 0", id="no heartbeat"),
        pytest.param(300, 10, -1, "-1,000 ms must be above 0", id="negative heartbeat"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(budget, session, heartbeat, words):
    """Each refusal names both numbers of the contradiction."""
    with pytest.raises(InvalidSettingError, match=f"(?s){words}"):
        derived(budget, session=session, heartbeat=heartbeat)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param(
            {"session": 30},
            "session_timeout_seconds=30 .*45,000 and 5,000 ms.*leave them unset",
            id="session",
        ),
        pytest.param(
            {"heartbeat": 3},
            (
                "heartbeat_interval_seconds=3 .*kafka-configs --alter --entity-type groups --entity-name "
                "<group id>"
            ),
            id="heartbeat",
        ),
        pytest.param(
            {"session": 45}, "session_timeout_seconds=45 ", id="the broker's number too: it may change there"
        ),
        pytest.param(
            {"group": ConsumerGroupConfig(1_000, 500)},
            "heartbeat interval 500 ms.*333 of 1,000 ms.*set it on the broker: kafka-configs",
            id="two beats a session",
        ),
        pytest.param(
            {"group": ConsumerGroupConfig(45_000, 0)},
            "0 ms must be above 0.*15,000 of 45,000",
            id="no heartbeat",
        ),
        pytest.param(
            {"group": ConsumerGroupConfig(90_000_000, 5_000)},
            "90,000,000 ms is above 24 h, 86,400,000 ms",
            id="over 24 h",
        ),
    ],
)
def test_what_contradicts_the_group_config_is_refused(settings, words):
    """Under KIP-848 a refusal names the broker's numbers and the command that changes them."""
    with pytest.raises(InvalidSettingError, match=f"(?s){words}"):
        derived(300, **{"group": KIP_848, **settings})


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        pytest.param(
            BrokerLimits(90_000_000, 90_000_000),
            "90,000,000 ms is above 24 h",
            id="no poll interval is so long",
        ),
        pytest.param(
            BrokerLimits(2, 2),
            "0 ms must be above 0 and at most.*0 of 2 ms",
            id="no room for three heartbeats",
        ),
        pytest.param(
            BrokerLimits(7_200_000, 3_600_000),
            "outside.*7,200,000 to 3,600,000 ms",
            id="over librdkafka's hour",
        ),
    ],
)
def test_a_broker_no_member_could_satisfy_is_refused(limits, words):
    """Limits without a valid session are an error with the numbers, not a member that the broker refuses."""
    with pytest.raises(InvalidSettingError, match=f"(?s){words}"):
        derived(300, limits=limits)


@pytest.mark.parametrize(
    ("request_ms", "settings"),
    [
        pytest.param(None, {}, id="unset: the member sends its own"),
        pytest.param(6_999, {}, id="heartbeat and request fit into the session"),
        pytest.param(60_000, {"session": 64}, id="librdkafka's default with a long session"),
        pytest.param(39_999, {"group": KIP_848}, id="KIP-848"),
        pytest.param(10, {"budget": 86_400}, id="far below the poll interval: JoinGroup does not care"),
    ],
)
def test_a_request_may_wait_as_long_as_another_heartbeat_fits(request_ms, settings):
    """One connection that dies silently does not cost the membership."""
    check_request_timeout(request_ms, derived(**{"budget": 300, **settings}))


@pytest.mark.parametrize(
    ("request_ms", "settings", "words"),
    [
        pytest.param(
            7_000,
            {},
            "7,000 and heartbeat interval 3,000 ms.*10,000 ms.*below 7,000.*5,000 is sent",
            id="10 s",
        ),
        pytest.param(60_000, {}, "socket.timeout.ms 60,000.*below 7,000", id="librdkafka's default"),
        pytest.param(60_000, {"group": KIP_848}, "60,000.*5,000 ms.*45,000 ms.*below 40,000", id="KIP-848"),
    ],
)
def test_a_request_timeout_that_outlasts_the_session_is_refused(request_ms, settings, words):
    """The numbers of the contradiction, and what to set instead."""
    with pytest.raises(InvalidSettingError, match=f"(?s){words}"):
        check_request_timeout(request_ms, derived(300, **settings))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        pytest.param({"session": 45}, ["session_timeout_seconds", "max_batch_seconds"], id="classic"),
        pytest.param({"group": KIP_848}, ["consumer.session.timeout.ms", "max_batch_seconds"], id="KIP-848"),
    ],
)
def test_a_budget_below_the_session_is_raised_with_a_warning(settings, names):
    """KIP-62: "the maximum of the session timeout and the process timeout".

    On both protocols, with both numbers.
    """
    timeouts = derived(30, **settings)
    assert timeouts.process_timeout_ms == timeouts.session_timeout_ms == 45_000
    assert [
        word for word in ("30 s (argument max_batch_seconds)", "45 s", *names) if word not in timeouts.warning
    ] == []


@pytest.mark.parametrize("budget", [45, 300])
def test_a_budget_that_covers_the_session_is_no_warning(budget):
    """The process timeout is the budget."""
    assert derived(budget, session=45).warning == ""


def test_the_end_of_a_run_does_not_contradict_the_session():
    """A budget below the session is the user's choice; one cut by the run's end is nobody's."""
    capped = RunBudget(
        5, "argument max_batch_seconds, capped by the rest of dagster/max_runtime", is_capped=True
    )
    timeouts = derive_timeouts(capped, session_seconds=30, heartbeat_seconds=None, limits=APACHE)
    assert (timeouts.session_timeout_ms, timeouts.process_timeout_ms, timeouts.warning) == (
        30_000,
        30_000,
        "",
    )


@pytest.mark.parametrize(("budget", "milliseconds"), [(10.0, 6_000), (300.0, 295_000)])
def test_a_rebalance_waits_less_than_the_group_grants(budget, milliseconds):
    """A heartbeat for hearing of it, a tenth or 2 s for the last commit."""
    settings = {"session_seconds": None, "heartbeat_seconds": None, "limits": APACHE}
    assert (
        derive_timeouts(RunBudget(budget, "argument max_batch_seconds"), **settings).handover_ms
        == milliseconds
    )


@pytest.mark.parametrize(
    ("budget", "milliseconds"), [(10.0, 14_000), (300.0, 305_000), (MAX_BUDGET_SECONDS, 86_400_000)]
)
def test_the_broker_waits_for_a_batch_that_was_planned_within_a_rebalance(budget, milliseconds):
    """The member heard of it a heartbeat after it began: its batch still has all its time, and a commit."""
    settings = {"session_seconds": None, "heartbeat_seconds": None, "limits": APACHE}
    timeouts = derive_timeouts(RunBudget(budget, "argument max_batch_seconds"), **settings)
    assert timeouts.rebalance_timeout_ms == milliseconds


@given(
    seconds=st.floats(0.001, MAX_BUDGET_SECONDS),
    capped=st.booleans(),
    session=TYPED_SECONDS,
    heartbeat=TYPED_SECONDS,
    limits=LIMITS | ANY_LIMITS,
    group=st.none() | USUAL_GROUP | ANY_GROUP,
)
def test_every_answer_keeps_every_rule(*, seconds, capped, session, heartbeat, limits, group):
    """On both protocols: a member that keeps all rules of KIP-62, or a named error with numbers."""
    budget = RunBudget(seconds, "argument max_batch_seconds", is_capped=capped)
    settings = {"session_seconds": session, "heartbeat_seconds": heartbeat, "limits": limits, "group": group}
    try:
        timeouts = derive_timeouts(budget, **settings)
    except InvalidSettingError as error:
        refused = str(error)
        assert len(re.findall(r"\d", refused)) >= 2
    else:
        assert 0 < 3 * timeouts.heartbeat_ms <= timeouts.session_timeout_ms <= timeouts.process_timeout_ms
        assert timeouts.process_timeout_ms == max(timeouts.session_timeout_ms, round(seconds * 1000))
        assert timeouts.process_timeout_ms <= MAX_BUDGET_SECONDS * 1000
        assert timeouts.budget is budget
        assert ("raised" in str(timeouts)) == (timeouts.process_timeout_ms != round(seconds * 1000))
        check_request_timeout(timeouts.request_ms, timeouts)
        assert 0 < timeouts.handover_ms <= timeouts.process_timeout_ms - timeouts.heartbeat_ms
        check_owner(timeouts, session, heartbeat, limits, group)


def check_owner(timeouts, session, heartbeat, limits, group):
    """Session and heartbeat are whose they must be: the user's within the broker's limits, or the group's."""
    if group is None:
        assert timeouts.protocol == "classic"
        assert limits.min_session_ms <= timeouts.session_timeout_ms <= limits.max_session_ms
        assert session is None or timeouts.session_timeout_ms == round(session * 1000)
        assert heartbeat is None or timeouts.heartbeat_ms == round(heartbeat * 1000)
    else:
        assert timeouts.protocol == "consumer"
        assert (session, heartbeat) == (None, None)
        assert (timeouts.session_timeout_ms, timeouts.heartbeat_ms) == (group.session_ms, group.heartbeat_ms)


@given(st.floats(0.001, MAX_BUDGET_SECONDS), LIMITS)
def test_nothing_set_is_never_refused(seconds, limits):
    """Whoever sets only a budget always gets an answer: the defaults contradict nobody."""
    derive_timeouts(RunBudget(seconds, "op tag"), session_seconds=None, heartbeat_seconds=None, limits=limits)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("setting", "named"), [("session", "session timeout"), ("heartbeat", "heartbeat interval")]
)
def test_what_is_no_number_is_refused_by_name(setting, named, seconds):
    """A configuration file can say .inf and .nan: a named error, not Python's."""
    with pytest.raises(InvalidSettingError, match=f"{named} is {seconds} s: wanted a number"):
        derived(300, **{setting: seconds})
