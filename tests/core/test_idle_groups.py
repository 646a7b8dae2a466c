"""Which groups of a shared sensor get a tick, by the last ones and the time."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.idle_groups import (
    MAX_IDLE_SECONDS,
    REFRESH_SECONDS,
    SETTLE_SECONDS,
    LastTick,
    groups_to_observe,
    skip_reason,
)

SETTLED = LastTick(100.0, 100.0 - SETTLE_SECONDS, runs="runs", kafka="kafka", is_idle=True)
PACE = 5.0


def after(before, now, *, runs="runs", kafka="kafka", is_idle=True):
    return LastTick.after(before, now, runs=runs, kafka=kafka, is_idle=is_idle)


def test_an_idle_group_needs_no_tick_for_a_minute():
    assert SETTLED.may_skip(100.0)
    assert SETTLED.may_skip(99.9 + MAX_IDLE_SECONDS)
    assert not SETTLED.may_skip(100.0 + MAX_IDLE_SECONDS)
    assert not SETTLED.may_skip(99.0), "the clock was set back"


def test_the_ticks_go_on_until_the_group_has_settled():
    first = after(None, 100.0)
    assert not first.may_skip(100.0), "the first tick may have come in the middle of a change"
    soon = after(first, 99.9 + SETTLE_SECONDS)
    assert not soon.may_skip(soon.ticked_at)
    settled = after(soon, 100.0 + SETTLE_SECONDS)
    assert settled.changed_at == 100.0
    assert settled.may_skip(settled.ticked_at)


@pytest.mark.parametrize("change", [{"runs": "a run"}, {"kafka": "a record"}, {"is_idle": False}])
def test_a_change_begins_anew(change):
    changed = after(SETTLED, 101.0, **change)
    assert changed.changed_at == 101.0
    assert not changed.may_skip(101.0)
    still = after(changed, 110.0, **change)
    assert still.may_skip(110.0) is still.is_idle


def test_every_group_is_observed_within_a_minute_and_few_in_one_tick():
    """A hundred groups that were observed at the same moment, as after a start of the code server."""
    at = {f"g{n}": 0.0 for n in range(100)}
    sizes, now = [], 0.0
    for _ in range(60):
        now += PACE
        chosen = groups_to_observe(at, now, PACE)
        sizes.append(len(chosen))
        at |= dict.fromkeys(chosen, now)
        assert now < 2 * REFRESH_SECONDS or max(now - one for one in at.values()) < MAX_IDLE_SECONDS
    assert max(sizes) == 10
    assert sum(sizes[-12:]) >= 100


def test_a_group_that_was_just_observed_is_left_out():
    assert groups_to_observe({"orders": 100.0}, 101.0, PACE) == []
    assert groups_to_observe({"orders": 100.0}, 130.0, PACE) == ["orders"]
    assert groups_to_observe({}, 130.0, PACE) == []


def test_after_a_pause_all_are_observed():
    assert groups_to_observe({"b": 110.0, "a": 100.0}, 1_000.0, 890.0) == ["a", "b"]
    assert groups_to_observe({"a": 100.0}, 1_000.0, -1.0) == []


def test_the_reason_names_a_few_groups():
    assert skip_reason(1, {}) == "Nothing to start in 1 group, of which 1 idle"
    told = skip_reason(100, {"orders-etl": "the live run is in progress; lag 5, 0 offsets pending"})
    assert told == (
        "Nothing to start in 100 groups, of which 99 idle. orders-etl: the live run is in progress; lag 5, "
        "0 offsets pending"
    )
    many = skip_reason(9, {f"g{n}": "busy" for n in range(7)})
    assert many.endswith("g4: busy. And 2 more groups")
    assert "of which 2 idle" in many
