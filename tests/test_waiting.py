"""A test that waits in vain reports its wait, and limits of time grow by the factor of the machine."""

from __future__ import annotations

import re
import socket

import pytest

from tests import timeouts
from tests.timeouts import CONNECT_SECONDS, FACTOR, be_patient, connect, seconds
from tests.waiting import NeverCameError, seconds_until, wait_for


def test_the_first_true_value_is_returned():
    """False values before it end no wait."""
    values = iter([None, [], 0, "found"])
    assert wait_for(lambda: next(values), pause=0.0) == "found"


@pytest.mark.parametrize("wait", [wait_for, seconds_until])
def test_a_wait_in_vain_reports_source_time_looks_and_last_value(wait):
    """The line of the caller stands for a description."""
    looks = []
    with pytest.raises(NeverCameError) as failed:
        wait(lambda: looks.append(len(looks)) or [], 0.05)
    text = str(failed.value)
    assert "`wait(lambda: looks.append(len(looks)) or [], 0.05)` (tests/test_waiting.py:" in text
    assert f"last saw [] after {len(looks):,} looks" in text
    assert float(re.match(r"waited ([\d.]+) s for ", text)[1]) >= 0.05


def test_a_description_and_details_are_reported_in_place_of_the_source():
    """Such as the end of a log, which is read when the wait is over."""
    with pytest.raises(
        NeverCameError, match=r"for the group is empty; last saw False after .*\nits log"
    ) as failed:
        wait_for(lambda: False, 0.0, what="the group is empty", details=lambda: "its log")
    assert "lambda" not in str(failed.value)


def test_an_error_of_the_look_ends_the_wait():
    """A server that died would be waited for in vain."""
    with pytest.raises(ZeroDivisionError):
        wait_for(lambda: 1 / 0)


def test_the_factor_multiplies_limits_and_patience(monkeypatch):
    """A setting and the bound on it keep their ratio."""
    monkeypatch.delenv(FACTOR, raising=False)
    assert seconds(1.5) == 1.5
    monkeypatch.setenv(FACTOR, "2.5")
    assert seconds(2) == 5
    with pytest.raises(NeverCameError) as failed:
        wait_for(lambda: None, 0.04)
    assert float(re.match(r"waited ([\d.]+) s for ", str(failed.value))[1]) >= 0.1


@pytest.mark.parametrize("value", ["fast", "0.5", "inf", "nan", ""])
def test_a_factor_that_shortens_deadlines_is_refused(monkeypatch, value):
    """Or one that is no number: the variable is named."""
    monkeypatch.setenv(FACTOR, value)
    with pytest.raises(ValueError, match=f"{FACTOR} is '{value}': wanted a number from 1 on"):
        seconds(1)


def test_a_server_that_listens_gets_time_and_an_absent_one_gets_none(monkeypatch):
    """The limit of a new Spark session is raised for a busy server.

    The caller's limit holds where nothing listens.
    """
    be_patient(monkeypatch.setattr)  # raises where the product has no such limit any more
    monkeypatch.setattr(
        timeouts, "_connect_of_the_product", lambda: lambda _, timeout_seconds: timeout_seconds
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        remote = f"sc://localhost:{server.getsockname()[1]}/;token=t"
        assert connect(remote, timeout_seconds=3.0) == seconds(CONNECT_SECONDS)
    assert connect(remote, timeout_seconds=3.0) == 3.0
    assert connect("sc://localhost", timeout_seconds=3.0) == 3.0
