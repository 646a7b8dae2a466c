"""The table of a member's states, held against what KIP-62 and KIP-848 let happen.

And DESIGN.md shows the same one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.member_state import (
    ALLOWED_ACTIONS,
    TRANSITIONS,
    CommitAction,
    Event,
    IllegalEventError,
    LeaveAction,
    MemberState,
    PollAction,
    State,
)

DESIGN = Path(__file__).parents[2] / "DESIGN.md"
IN_A_CALLBACK = {state for state, calls in ALLOWED_ACTIONS.items() if calls.leave is LeaveAction.AFTER_POLL}


def shown(name):
    """As the document writes it."""
    return name.lower().replace("_", " ")


def tables():
    """The tables as DESIGN.md shows them."""
    commits = "`commit_start_positions`, `commit`, `verify_ownership`"
    yield f"| state | what it is | comes from | `poll` | {commits} | `leave` |"
    yield "|---|---|---|---|---|---|"
    for state in State:
        before = [shown(s.name) for s in State if s is not state and state in TRANSITIONS[s].values()]
        calls = ALLOWED_ACTIONS[state]
        does = (shown(calls.poll.name), shown(calls.commit.name), shown(calls.leave.name))
        yield (
            f"| {' | '.join((shown(state.name), state.value, ', '.join(before) or 'the beginning', *does))} |"
        )
    yield ""
    yield f"| event | {' | '.join(shown(state.name) for state in State)} |"
    yield f"|{'---|' * (1 + len(State))}"
    for event in Event:
        to = [shown(TRANSITIONS[s][event].name) if event in TRANSITIONS[s] else "-" for s in State]
        yield f"| {' | '.join((shown(event.name), *to))} |"
    yield ""
    for call, kind in (
        ("`poll`", PollAction),
        ("`commit_start_positions`, `commit`, `verify_ownership`", CommitAction),
        ("`leave`", LeaveAction),
    ):
        yield f"- {call}. {'; '.join(f'*{shown(one.name)}*: {one.value}' for one in kind)}."
    yield f"- Events. {'; '.join(f'*{shown(event.name)}*: {event.value}' for event in Event)}."


def told(*events):
    """A member to which this has happened."""
    standing = MemberState()
    for event in events:
        standing.apply(event)
    return standing


def after_all(events):
    """The same, but for what cannot happen."""
    standing = MemberState()
    for event in events:
        if event in TRANSITIONS[standing.state]:
            standing.apply(event)
    return standing


def test_design_shows_the_table_of_the_program():
    """Whoever changes one sees it in the other: paste what is printed below."""
    text = "\n".join(tables())
    assert text in DESIGN.read_text(encoding="utf-8"), (
        f"DESIGN.md has another table than the program:\n{text}"
    )


@pytest.mark.parametrize(
    ("events", "state"),
    [
        pytest.param([], State.JOINING, id="subscribe joins"),
        pytest.param(["PARTITIONS_ASSIGNED"], State.ASSIGNED, id="KIP-62: SyncGroup has answered"),
        pytest.param(["POLL_ENDED"], State.JOINING, id="a poll in which nothing happened"),
        pytest.param(
            ["PARTITIONS_ASSIGNED", "REVOCATION_BEGAN"], State.REVOKING, id="a rebalance takes partitions"
        ),
        pytest.param(
            ["PARTITIONS_ASSIGNED", "REVOCATION_BEGAN", "POLL_ENDED"],
            State.ASSIGNED,
            id="given up in good order",
        ),
        pytest.param(["PARTITIONS_ASSIGNED", "FENCED"], State.FENCED, id="KIP-848: FENCED_MEMBER_EPOCH"),
        pytest.param(
            ["FENCED"], State.FENCED, id="KIP-345: the instance id is another's, before anything was assigned"
        ),
        pytest.param(
            ["PARTITIONS_ASSIGNED", "FENCED", "PARTITIONS_ASSIGNED"],
            State.FENCED,
            id="librdkafka rejoins by itself",
        ),
        pytest.param(
            ["PARTITIONS_ASSIGNED", "FENCED", "REVOCATION_BEGAN"],
            State.LOSING,
            id="librdkafka#5604: lost is revoked",
        ),
        pytest.param(
            ["PARTITIONS_ASSIGNED", "REVOCATION_BEGAN", "FENCED"],
            State.LOSING,
            id="KIP-62: it waited too long",
        ),
        pytest.param(
            ["PARTITIONS_ASSIGNED", "REVOCATION_BEGAN", "FENCED", "POLL_ENDED"],
            State.FENCED,
            id="and returned",
        ),
        pytest.param(
            ["PARTITIONS_ASSIGNED", "REVOCATION_BEGAN", "LEAVE_DEFERRED"],
            State.LEAVING,
            id="fenced inside of a callback",
        ),
        pytest.param(
            ["PARTITIONS_ASSIGNED", "REVOCATION_BEGAN", "LEAVE_DEFERRED", "POLL_ENDED", "GROUP_LEFT"],
            State.LEFT,
            id="and it leaves when the poll ends",
        ),
        pytest.param(["GROUP_LEFT"], State.LEFT, id="closed before it was let in"),
        pytest.param(
            ["PARTITIONS_ASSIGNED", "GROUP_LEFT", "REVOCATION_BEGAN"], State.LEFT, id="close() calls back"
        ),
        pytest.param(["PARTITIONS_ASSIGNED", "COMMIT_TIMED_OUT"], State.LEFT, id="no commit came back"),
    ],
)
def test_what_happens_leads_where_the_protocols_have_it(events, state):
    """A story a row."""
    standing = told(*(Event[name] for name in events))
    assert (standing.state, standing.allowed) == (state, ALLOWED_ACTIONS[state])


@given(st.lists(st.sampled_from(Event)), st.sampled_from(Event))
def test_what_cannot_happen_raises_and_changes_nothing(before, event):
    """Wherever it stands: the event is in the table, or the member stands where it stood."""
    standing = after_all(before)
    state = standing.state
    if event in TRANSITIONS[state]:
        standing.apply(event)
        assert standing.state is TRANSITIONS[state][event]
    else:
        with pytest.raises(
            IllegalEventError, match=f"{event.name} cannot happen to a member that is {state.name}"
        ):
            standing.apply(event)
        assert standing.state is state


def test_why_it_is_out_is_told_with_the_event():
    """And not before."""
    standing = told(Event.PARTITIONS_ASSIGNED)
    assert standing.fenced_by is None
    standing.fence(FenceReason.PARTITIONS_LOST)
    assert (standing.state, standing.fenced_by) == (State.FENCED, FenceReason.PARTITIONS_LOST)


@given(st.lists(st.sampled_from(Event)))
def test_what_is_fenced_is_fenced_for_good(events):
    """KIP-62, KIP-848: who is out may not commit any more, and comes back as a new member."""
    standing, was_out = MemberState(), False
    for event in events:
        if event in TRANSITIONS[standing.state]:
            standing.apply(event)
        was_out = was_out or standing.state not in (State.JOINING, State.ASSIGNED, State.REVOKING)
        assert not (was_out and standing.state in (State.JOINING, State.ASSIGNED, State.REVOKING))


def test_every_state_is_reached_and_but_for_the_last_one_left():
    """Nothing in the table is there for nothing, and nobody is caught."""
    reached, new = set(), {State.JOINING}
    while new:
        reached |= new
        new = {to for state in new for to in TRANSITIONS[state].values()} - reached
    assert reached == set(State) == set(TRANSITIONS) == set(ALLOWED_ACTIONS)
    for start in State:
        ways, new = set(), {start}
        while new:
            ways |= new
            new = {to for state in new for to in TRANSITIONS[state].values()} - ways
        assert State.LEFT in ways
    assert set(TRANSITIONS[State.LEFT].values()) == {State.LEFT}


def test_nothing_closes_a_client_inside_of_its_own_callback():
    """There ``close()`` never returns, and a commit is made by the callback's thread.

    It always comes back.
    """
    assert {State.REVOKING, State.LOSING, State.LEAVING} == IN_A_CALLBACK
    for state in State:
        can_close = {Event.GROUP_LEFT, Event.COMMIT_TIMED_OUT} & TRANSITIONS[state].keys()
        assert not (state in IN_A_CALLBACK and can_close)
        assert (Event.GROUP_LEFT in can_close) == (ALLOWED_ACTIONS[state].leave is LeaveAction.NOW)
        assert (Event.LEAVE_DEFERRED in TRANSITIONS[state]) == (state in IN_A_CALLBACK)
        assert (ALLOWED_ACTIONS[state].poll is PollAction.WAIT) == (
            ALLOWED_ACTIONS[state].commit is CommitAction.IN_CALLBACK
        )
        assert (ALLOWED_ACTIONS[state].poll is PollAction.WAIT) == (state in IN_A_CALLBACK)


def test_who_owns_nothing_commits_nothing():
    """Before the first assignment, and after the leave; only what is committed can meet silence."""
    assert {s for s in State if ALLOWED_ACTIONS[s].commit is CommitAction.NOTHING} == {
        State.JOINING,
        State.LEFT,
    }
    for state in State:
        assert (Event.COMMIT_TIMED_OUT in TRANSITIONS[state]) == (
            ALLOWED_ACTIONS[state].commit is CommitAction.NORMAL
        )


def test_what_librdkafka_calls_back_is_never_refused_to_it():
    """Whatever it has to tell is heard wherever it may tell it: nobody is revoked what was never assigned."""
    for state in State:
        assert {Event.PARTITIONS_ASSIGNED, Event.FENCED} <= TRANSITIONS[state].keys()
        assert (Event.REVOCATION_BEGAN in TRANSITIONS[state]) == (state is not State.JOINING)
        assert (Event.POLL_ENDED in TRANSITIONS[state]) == (state is not State.LEFT)
