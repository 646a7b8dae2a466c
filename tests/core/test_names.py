"""Which texts are names and addresses: one row for each reason."""

from __future__ import annotations

from uuid import uuid4

import pytest

from kafka_liveness_dagster.core import names
from kafka_liveness_dagster.core.errors import InvalidSettingError, summary_line
from kafka_liveness_dagster.core.names import display


@pytest.mark.parametrize(
    ("kind", "fits", "does_not"),
    [
        pytest.param(names.TEXT, ["", " ", "a\nb", "ä😀"], ["a\0", "\ud800", "a\udfffb"], id="text"),
        pytest.param(
            names.VALUE,
            ["", "a b ", "ä"],
            [" a", "\ta", "\n", "a\0", "\ud800"],
            id="of librdkafka's settings",
        ),
        pytest.param(
            names.GROUP_ID,
            ["etl", "a b", "日本", "x" * 249, "a.catch-up.b"],
            ["", " ", " a", "a ", "a\0b", "a\nb", "\u200b", "\ud800", "x" * 250, "etl.catch-up", ".catch-up"],
            id="group",
        ),
        pytest.param(names.MEMBER_ID, ["etl-0.catch-up"], ["", " a", "x" * 250], id="static member"),
        pytest.param(
            names.TOPIC,
            ["a", "a...b", "x" * 249, "...", "-"],
            ["", ".", "..", "a b", "a:b", "ä", "a\n", "^a", "x" * 250],
            id="topic",
        ),
        pytest.param(
            names.CRASH_LAG_TOPIC, ["a..b", "a.b.c"], ["a...b", "a....b", "."], id="topic that may be owed"
        ),
        pytest.param(
            names.TABLE,
            ["a.b.c", "lake.a-b.c_1.d9"],
            [
                "a.b",
                "a..b.c",
                ".a.b.c",
                "a.b.c.",
                "a.b.`c`",
                "a.b.c d",
                "a.b.c\n",
                "a.b.ä",
                f"a.b.{'x' * 256}",
            ],
            id="table",
        ),
        pytest.param(
            names.SERVERS,
            ["h:1", "a:1,b:65535", "a:1, b:2,", "[::1]:9092", "SASL_SSL://h.example:9092", "127.0.0.1:9092"],
            [
                "",
                " ",
                ",",
                "h",
                "h:",
                "h:0",
                "h:65536",
                "h:1;g:2",
                "h 1:2",
                "h:1\n",
                "http//h:1",
                "http://h:1",
                "a:1,b",
            ],
            id="brokers",
        ),
        pytest.param(
            names.URL,
            ["http://h", "https://h:1/a?b=c", "https://ä"],
            ["", "h", "ftp://h", "HTTP://h", " http://h", "http://h\0", "http://\ud800"],
            id="web address",
        ),
        pytest.param(
            names.REGISTRY,
            ["http://h:8081", "https://h/registry", "http://a:1,https://b:2", "http://[::1]:8081"],
            [
                "",
                ",",
                "h:8081",
                "http://",
                "http://h:0",
                "http://h:65536",
                "http://h:x",
                "http://[::1",
                "http://u:p@h",
                "http://h?a=b",
                "http://h#a",
                "http://h a",
                "http://ä",
                "http://h\n",
                "http://a:1, http://b:2",
                "http://a:1,b:2",
            ],
            id="schema registry",
        ),
        pytest.param(
            names.REMOTE,
            ["sc://h", "sc://h:1", "sc://h:1/", "sc://h:1/;", "sc://[::1]:1/;token=a;user_id=b"],
            [
                "",
                "h:1",
                "sc://",
                "sc://h:0",
                "sc://h:65536",
                "sc://h:x",
                "sc://[::1",
                "sc://h/x",
                "sc://h/;token",
                "sc://h/;token=ä",
                "sc://h/;a=b c",
                "sc://h/;session_id=a",
                "SC://h",
                "sc://h\n",
            ],
            id="Spark Connect",
        ),
        pytest.param(
            names.REMOTE,
            ["sc://h/;token=a%20b", "sc://h/;user_id=%C3%A4", f"sc://h/;session_id={uuid4()}"],
            ["sc://h/;token", "sc://h/;token=ä", "sc://h/;token=a b", "sc://h/;session_id=a"],
            id="what it is told beside",
        ),
    ],
)
def test_a_name_is_what_its_owner_takes(kind, fits, does_not):
    """And the refusal says which setting, which value and what was wanted."""
    assert [text for text in fits if not kind.matches(text)] == []
    assert [text for text in does_not if kind.matches(text)] == []
    for value in (*does_not, 7, None):
        with pytest.raises(InvalidSettingError) as refusal:
            kind.check(value, "a setting")
        assert str(refusal.value) == f"a setting is {display(value)}: wanted {kind.description}"


def test_a_sink_is_named_by_the_code_that_made_it():
    """Classes and functions by their names, objects by their class, a closure by the function around it."""

    def to_lake():
        return lambda batch: batch

    class Lake:
        """A sink of a user."""

    assert names.sink_name(to_lake()) == "test_a_sink_is_named_by_the_code_that_made_it"
    assert names.sink_name(sorted) == "sorted"
    assert names.sink_name(names.NameRule) == "NameRule"
    assert names.sink_name(Lake()) == "Lake"


def test_every_value_can_be_shown():
    """In one short line, whatever it is."""

    class Odd:
        """Something that cannot say what it is."""

        def __repr__(self):
            raise ValueError

    for value in ("x" * 10_000, "\ud800\n", 10**5_000, [10**5_000], Odd(), ["x" * 1_000] * 1_000, None):
        told = display(value)
        assert len(told) < 600
        assert told.isprintable()
    assert display("or ders") == "'or ders'"
    assert display(10**5_000) == "a value of type int"


def test_an_error_of_a_driver_is_told_in_one_line():
    """Drivers add statements, their values and links."""
    assert summary_line(OSError("disk is full\n[SQL: INSERT INTO ...]")) == "OSError: disk is full"
    assert summary_line(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_a_caller_adds_what_it_knows_to_an_error():
    """One sentence after the other, whether the text ended with a full stop or not."""
    error = InvalidSettingError("orders is no topic.")
    error.append("Nothing was read")
    error.append("The next run reads it")
    error.append("Nothing was read")
    assert str(error) == "orders is no topic. Nothing was read. The next run reads it"


def test_text_of_another_program_is_one_line_without_escape_sequences():
    """A terminal would act on them; what is printed stays as it is, in any alphabet."""
    assert names.escape("kcat\x1b[2J\n\u202eÜ заказ") == r"kcat\x1b[2J\n\u202eÜ заказ"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.04, "0 s"),
        (0.42, "0.4 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (112.8, "1 min 53 s"),
        (3_600, "1 h"),
        (100_000, "27 h 46 min"),
        (172_799.6, "2 days"),
        (200_000, "2 days 7 h"),
        (86_400 * 1_234, "1,234 days"),
    ],
)
def test_durations(seconds, text):
    """Two units are enough to compare."""
    assert names.format_duration(seconds) == text
