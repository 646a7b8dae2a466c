"""Nobody is said to be gone who may be there: each row is a process, and from where it is looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_liveness_dagster.core.process_status import Entry, Place, Process, Sign, Word, judge, start_is_lost

RUN = "0badcafe"
HERE = Place(boot="48df4ead", cell="4026531836.4026531834", machine="9f3c2a11")
IN_A_CONTAINER = Place(boot="48df4ead", cell="4026532601.4026531834")
TOLD = Process(HERE, pid=4242, began=1_311_164)
NOTHING, SAME = Entry(exists=False), Entry(exists=True, began=1_311_164)


@pytest.mark.parametrize(
    ("told", "here", "now", "word"),
    [
        pytest.param(HERE, HERE, SAME, Word.THERE, id="it is there"),
        pytest.param(HERE, HERE, NOTHING, Word.GONE, id="killed"),
        pytest.param(HERE, HERE, Entry(exists=True, began=1_400_000), Word.GONE, id="its pid is another's by now"),
        pytest.param(HERE, HERE, Entry(exists=True), Word.THERE, id="not shown to us, but it exists"),
        pytest.param(HERE, replace(HERE, boot="0c0ffee0"), NOTHING, Word.GONE, id="the machine was started anew"),
        pytest.param(HERE, replace(HERE, boot="0c0ffee0"), SAME, Word.GONE, id="and has such a process, too"),
        pytest.param(
            HERE, replace(HERE, boot="0c0ffee0", machine="77777777"), NOTHING, Word.UNKNOWN, id="another machine"
        ),
        pytest.param(HERE, IN_A_CONTAINER, NOTHING, Word.UNKNOWN, id="looked for from a container of its machine"),
        pytest.param(IN_A_CONTAINER, HERE, NOTHING, Word.UNKNOWN, id="in a container of this machine"),
        pytest.param(IN_A_CONTAINER, IN_A_CONTAINER, NOTHING, Word.GONE, id="in this container"),
        pytest.param(
            IN_A_CONTAINER,
            replace(IN_A_CONTAINER, cell="4026532777.4026531834"),
            NOTHING,
            Word.UNKNOWN,
            id="in another",
        ),
        pytest.param(
            IN_A_CONTAINER,
            replace(IN_A_CONTAINER, boot="0c0ffee0"),
            NOTHING,
            Word.UNKNOWN,
            id="a container of any host",
        ),
    ],
)
def test_what_is_known_of_a_process(told, here, now, word):
    """A pid means something where it was given, and nowhere else."""
    assert judge(replace(TOLD, place=told), here, now) is word


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
    assert start_is_lost(launched, 1_030.0, server_began=server_began, limit_seconds=limit) is lost


@pytest.mark.parametrize(
    "sign",
    [
        Sign(RUN),
        Sign(RUN, 0),
        Sign(RUN, 41, TOLD),
        Sign(RUN, None, TOLD),
        Sign(RUN, None, TOLD, is_over=True),
        Sign(RUN, 41, replace(TOLD, place=IN_A_CONTAINER)),
    ],
)
def test_what_is_told_is_read(sign):
    """Out of a tag, as it was put in."""
    assert Sign.decode(sign.encode(), RUN) == sign


@pytest.mark.parametrize(
    "tag",
    [
        "",
        "1",
        "1 0badcafe",
        "2 0badcafe 7 4242 1311164 48df4ead 4026531836 -",
        Sign("0000beef", 7, TOLD).encode(),
    ],
)
def test_another_runs_tag_says_nothing(tag):
    """A run that repeats a dead one has its tags; another version may write them otherwise."""
    assert Sign.decode(tag, RUN) == Sign(RUN)


@pytest.mark.parametrize(
    "tag", ["1 0badcafe 7 pid ticks boot cell -", "1 0badcafe 7 4242 1311164", "1 0badcafe 7 1 2 3 4 5 6"]
)
def test_a_process_that_cannot_be_read_is_none(tag):
    """The beat counts all the same."""
    assert Sign.decode(tag, RUN) == Sign(RUN, 7)
