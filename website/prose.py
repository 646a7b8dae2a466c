"""Check the English of pages, docstrings, comments and messages: ``python -m website.prose``.

Counts three things a file: words that have a plainer or a more exact form, sentences above 25 words, and
lines of code above 72 columns, which the site cuts. A file may have as many as ``prose-budgets.json`` says.
Budgets only shrink: ``--write`` lowers them, and never raises one.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[1]
BUDGETS = Path(__file__).with_name("prose-budgets.json")
MAX_WORDS = 25
MAX_COLUMNS = 72
PLAINER = {
    r"ow(?:e|es|ed|ing)": "pending, crash lag",
    r"tell|tells|told": "report, log, record",
    r"forgiv(?:e|es|en)": "write off",
    r"witness(?:es)?|vouch(?:es|ed)?|testif(?:y|ies)": "ledger, record",
    r"strangers?|foreign": "external client",
    r"anew": "again, recreated, restarted",
    r"for ever": "indefinitely",
    r"(?:put|thrown) out": "removed from the group",
    r"landed|lands": "committed",
    r"patience": "timeout",
    r"nobody|somebody": "name the component",
    r"of yours|of one's own": "your",
    r"at rest": "idle",
    r"set back": "reset, rolled back",
}
"""Words as a regular expression, each with what to write."""
_WORD = re.compile(rf"(?<![\w`-])(?:{'|'.join(PLAINER)})(?![\w`])", re.IGNORECASE)
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z*`\[(])")
_KINDS = ("words", "long sentences", "wide code")


def findings_of_page(text: str) -> dict[str, list[str]]:
    """Return what a Markdown page has of each kind.

    >>> findings_of_page("What is owed waits.")["words"]
    ['owed: pending, crash lag']
    """
    code = [line for _, fence in _FENCE.findall(text) for line in fence.splitlines()]
    prose = _FENCE.sub("\n\n", text)
    prose = re.sub(r"<[^>]+>|\]\([^)]*\)", "", prose)
    return {
        "words": _plainer_words(re.sub(r"`[^`\n]*`", "", prose)),
        "long sentences": [s for block in _blocks(prose) for s in _long_sentences(block)],
        "wide code": [line for line in code if len(line) > MAX_COLUMNS],
    }


def findings_of_module(source: str) -> dict[str, list[str]]:
    """Return what the docstrings, comments and texts of a module have of each kind.

    >>> findings_of_module("# tells what is there")["words"]
    ['tells: report, log, record']
    """
    comments = [
        token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and "noqa" not in token.string
    ]
    texts = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    ]
    prose = [re.sub(r"`+[^`\n]*`+|>>>.*", "", text) for text in (*comments, *texts)]
    return {
        "words": [word for text in prose for word in _plainer_words(text)],
        "long sentences": [s for text in prose for block in _blocks(text) for s in _long_sentences(block)],
        "wide code": [],
    }


def _plainer_words(text: str) -> list[str]:
    return [f"{word}: {_advice(word)}" for word in _WORD.findall(text)]


def _advice(word: str) -> str:
    return next(advice for form, advice in PLAINER.items() if re.fullmatch(form, word, re.IGNORECASE))


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs, items of lists, entries of ``Args:`` and cells of tables: no sentence spans two of them."""
    entry = r"\w+(?:, \w+)*: "
    for block in re.split(rf"\n\s*\n|\n\s*(?=[-*|#]|\d+\. )|\n {{4,}}(?={entry})", text):
        yield from re.split(r"(?<!\\)\|", block) if block.lstrip().startswith("|") else [block]


def _long_sentences(block: str) -> list[str]:
    sentences = _SENTENCE_END.split(" ".join(block.split()))
    return [sentence for sentence in sentences if len(sentence.split()) > MAX_WORDS]


def findings() -> dict[str, dict[str, list[str]]]:
    """Return the findings of each file, by its path in the checkout."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    modules = ROOT.glob("kafka_liveness_dagster/**/*.py")
    found = {path: findings_of_page(path.read_text(encoding="utf-8")) for path in pages}
    found |= {path: findings_of_module(path.read_text(encoding="utf-8")) for path in modules}
    return {path.relative_to(ROOT).as_posix(): kinds for path, kinds in sorted(found.items())}


def _lowered(counts: dict[str, list[int]], budgets: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the budgets without what is not needed any more; a new file has none."""
    lowered = {}
    for path, now in counts.items():
        before = budgets.get(path, [0, 0, 0]) if budgets else now
        lowered[path] = [min(pair) for pair in zip(now, before, strict=True)]
    return {path: numbers for path, numbers in lowered.items() if any(numbers)}


def main(arguments: Iterable[str] | None = None) -> int:
    """Print what is above a file's budget; return 1 if anything is."""
    parser = argparse.ArgumentParser(prog="python -m website.prose", description=__doc__)
    parser.add_argument("--write", action="store_true", help="lower the budgets to what is there now")
    parser.add_argument("--show", metavar="FILE", help="print all findings of one file")
    options = parser.parse_args(None if arguments is None else list(arguments))
    found = findings()
    if options.show:
        for kind, texts in found[options.show].items():
            print(*(f"{kind}: {text}" for text in texts), sep="\n")  # noqa: T201
        return 0
    counts = {path: [len(kinds[kind]) for kind in _KINDS] for path, kinds in found.items()}
    budgets = json.loads(BUDGETS.read_text(encoding="utf-8")) if BUDGETS.exists() else {}
    if options.write:
        lines = (f"  {json.dumps(path)}: {json.dumps(n)}" for path, n in _lowered(counts, budgets).items())
        BUDGETS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        return 0
    above = [
        f"{path}: {now} {kind}, the budget is {budget}. Show: python -m website.prose --show {path}"
        for path, numbers in counts.items()
        for kind, now, budget in zip(_KINDS, numbers, budgets.get(path, [0, 0, 0]), strict=True)
        if now > budget
    ]
    totals = [sum(numbers[i] for numbers in counts.values()) for i in range(len(_KINDS))]
    print(*above, ", ".join(f"{n:,} {k}" for n, k in zip(totals, _KINDS, strict=True)), sep="\n")  # noqa: T201
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
