"""Nobody is said to be gone who may be there: each row is a process, and from where it is looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_liveness_dagster.core.process_status import (
    HeartbeatTag,
    PidEntry,
    Process,
    ProcessNamespace,
    ProcessStatus,
    is_start_lost,
    process_status,
)

RUN = "0badcafe"
HERE = ProcessNamespace(boot_id="48df4ead", namespaces="4026531836.4026531834", machine_id="9f3c2a11")
IN_A_CONTAINER = ProcessNamespace(boot_id="48df4ead", namespaces="4026532601.4026531834")
TOLD = Process(HERE, pid=4242, start_ticks=1_311_164)
NOTHING, SAME = PidEntry(exists=False), PidEntry(exists=True, start_ticks=1_311_164)


@pytest.mark.parametrize(
    ("told", "here", "now", "word"),
    [
        pytest.param(HERE, HERE, SAME, ProcessStatus.ALIVE, id="it is there"),
        pytest.param(HERE, HERE, NOTHING, ProcessStatus.GONE, id="killed"),
        pytest.param(
            HERE,
            HERE,
            PidEntry(exists=True, start_ticks=1_400_000),
            ProcessStatus.GONE,
            id="its pid is another's by now",
        ),
        pytest.param(
            HERE, HERE, PidEntry(exists=True), ProcessStatus.ALIVE, id="not shown to us, but it exists"
        ),
        pytest.param(
            HERE,
            replace(HERE, boot_id="0c0ffee0"),
            NOTHING,
            ProcessStatus.GONE,
            id="the machine was started anew",
        ),
        pytest.param(
            HERE,
            replace(HERE, boot_id="0c0ffee0"),
            SAME,
            ProcessStatus.GONE,
            id="and has such a process, too",
        ),
        pytest.param(
            HERE,
            replace(HERE, boot_id="0c0ffee0", machine_id="77777777"),
            NOTHING,
            ProcessStatus.UNKNOWN,
            id="another machine",
        ),
        pytest.param(
            HERE,
            IN_A_CONTAINER,
            NOTHING,
            ProcessStatus.UNKNOWN,
            id="looked for from a container of its machine",
        ),
        pytest.param(
            IN_A_CONTAINER, HERE, NOTHING, ProcessStatus.UNKNOWN, id="in a container of this machine"
        ),
        pytest.param(IN_A_CONTAINER, IN_A_CONTAINER, NOTHING, ProcessStatus.GONE, id="in this container"),
        pytest.param(
            IN_A_CONTAINER,
            replace(IN_A_CONTAINER, namespaces="4026532777.4026531834"),
            NOTHING,
            ProcessStatus.UNKNOWN,
            id="in another",
        ),
        pytest.param(
            IN_A_CONTAINER,
            replace(IN_A_CONTAINER, boot_id="0c0ffee0"),
            NOTHING,
            ProcessStatus.UNKNOWN,
            id="a container of any host",
        ),
    ],
)
def test_what_is_known_of_a_process(told, here, now, word):
    """A pid means something where it was given, and nowhere else."""
    assert process_status(replace(TOLD, namespace=told), here, now) is word


@pytest.mark.parametrize(
    ("launched", "server_began", "limit", "lost"),
    [
        pytest.param(1_000, 900, 180, False, id="launched by this code server, just now"),
        pytest.param(1_000, 900, 20, True, id="longer ago than a start takes"),
        pytest.param(1_000, 900, 0, False, id="a start may take any time"),
        pytest.param(900, 950, 0, True, id="by one that is gone: its worker would be up by now"),
        pytest.param(980, 1_010, 0, False, id="which may be this moment"),
        pytest.param(900, None, 180, False, id="by someone who is not a code server"),
    ],
)
def test_a_run_that_never_starts(launched, server_began, limit, lost):
    """It was launched, and nobody has come up for it."""
    assert is_start_lost(launched, 1_030.0, server_started_at=server_began, limit_seconds=limit) is lost


@pytest.mark.parametrize(
    "sign",
    [
        HeartbeatTag(RUN),
        HeartbeatTag(RUN, 0),
        HeartbeatTag(RUN, 41, TOLD),
        HeartbeatTag(RUN, None, TOLD),
        HeartbeatTag(RUN, None, TOLD, has_ended=True),
        HeartbeatTag(RUN, 41, replace(TOLD, namespace=IN_A_CONTAINER)),
    ],
)
def test_what_is_told_is_read(sign):
    """Out of a tag, as it was put in."""
    assert HeartbeatTag.decode(sign.encode(), RUN) == sign


@pytest.mark.parametrize(
    "tag",
    [
        "",
        "1",
        "1 0badcafe",
        "2 0badcafe 7 4242 1311164 48df4ead 4026531836 -",
        HeartbeatTag("0000beef", 7, TOLD).encode(),
    ],
)
def test_another_runs_tag_says_nothing(tag):
    """A run that repeats a dead one has its tags; another version may write them otherwise."""
    assert HeartbeatTag.decode(tag, RUN) == HeartbeatTag(RUN)


@pytest.mark.parametrize(
    "tag", ["1 0badcafe 7 pid ticks boot cell -", "1 0badcafe 7 4242 1311164", "1 0badcafe 7 1 2 3 4 5 6"]
)
def test_a_process_that_cannot_be_read_is_none(tag):
    """The beat counts all the same."""
    assert HeartbeatTag.decode(tag, RUN) == HeartbeatTag(RUN, 7)
