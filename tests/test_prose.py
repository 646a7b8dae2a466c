"""The English of the pages: what the lint counts, and that its budgets only shrink."""

from __future__ import annotations

import json

import pytest

from website import prose

LONG = " ".join(["word"] * 26) + "."
WIDE = "x" * 73


@pytest.mark.parametrize(
    ("text", "kind", "number"),
    [
        ("What is owed waits for ever.", "words", 2),
        ("It borrowed the flow, and `owed` is a key.", "words", 0),
        (LONG, "long sentences", 1),
        (LONG.replace("word word", "word. Word", 1), "long sentences", 0),
        (f"- {LONG[:60]}\n- {LONG[60:]}", "long sentences", 0),
        (f"| {LONG[:60]} | {LONG[60:]} |", "long sentences", 0),
        (f"```python\n{WIDE}\n```\n", "wide code", 1),
        (f"```python\n{WIDE[:72]} \n```\n{WIDE}", "wide code", 1),
    ],
    ids=["words", "parts of words, code", "sentence", "two sentences", "list", "table", "wide", "prose"],
)
def test_what_is_counted(text, kind, number):
    """Of a page; a sentence ends with its item or cell."""
    assert len(prose.findings_of_page(text)[kind]) == number


def test_texts_of_a_module_are_counted():
    """Docstrings, comments and messages; doctests and names are none."""
    source = f'''"""Tells {LONG}\n\n>>> owed()"""\n# told here\nraise ValueError("it is owed", "owed")\n'''
    found = prose.findings_of_module(source)
    assert sorted(word.partition(":")[0] for word in found["words"]) == ["Tells", "owed", "told"]
    assert len(found["long sentences"]) == 1


def test_a_page_above_its_budget_is_named(monkeypatch, tmp_path, capsys):
    """A new page has no budget; a lower number lowers the budget, a higher one does not raise it."""
    budgets = tmp_path / "budgets.json"
    monkeypatch.setattr(prose, "BUDGETS", budgets)
    counts = {"words": ["owed: pending"], "long sentences": [], "wide code": []}
    monkeypatch.setattr(prose, "findings", lambda: {"docs/audit.md": counts})
    budgets.write_text(json.dumps({"docs/audit.md": [2, 0, 0]}))
    assert prose.main([]) == 0
    prose.main(["--write"])
    assert json.loads(budgets.read_text()) == {"docs/audit.md": [1, 0, 0]}
    counts["words"] *= 2
    assert prose.main([]) == 1
    assert "docs/audit.md: 2 words, the budget is 1" in capsys.readouterr().out
    prose.main(["--write"])
    assert json.loads(budgets.read_text()) == {"docs/audit.md": [1, 0, 0]}


def test_the_checkout_is_within_its_budgets(capsys):
    """As ``make lint`` says; the README has none of it."""
    assert prose.main([]) == 0, capsys.readouterr().out
    assert "README.md" not in json.loads(prose.BUDGETS.read_text())
