"""Query a vulnerability database for each Python package and each jar, and report what it returned.

`python -m supply_chain.audit` is `make audit`. A component without a response is never reported as clean.

Exit code: 0 if the database returned no vulnerability for any component; 1 if it returned some; 2 if it
returned none, but did not respond for some components.
"""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import requests
from packageurl import PackageURL

from supply_chain.components import Component, read_components

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OSV = "https://api.osv.dev"
"""The database of the Open Source Vulnerabilities project, which has the advisories of PyPI and of Maven."""
PER_REQUEST = 100  # OSV allows 1,000; a refused request then leaves fewer components without a response
MOST_PAGES = 20
# Old versions with well-known vulnerabilities: a database without them has no advisories to compare
CANARIES = tuple(
    Component(purl, ())
    for purl in (
        PackageURL("pypi", name="jinja2", version="2.4.1"),
        PackageURL("maven", "org.apache.logging.log4j", "log4j-core", "2.14.1"),
    )
)
_IDENTIFIER = re.compile(r"[\w.:-]+")
NOT_COVERED = """\
Not covered: what is inside of a wheel or jar (the jars of the pyspark wheel, librdkafka, shaded classes),
Java, and your own Spark and Kafka servers. OSV returns the same response for a component that it does not
know as for a component without known vulnerabilities."""


@dataclass
class Audit:
    """The responses.

    Attributes:
        vulnerable: identifiers of vulnerabilities by component; none for a component that is clean.
        unanswered: the reason, by each component without a complete response.
        described: the summary of each vulnerability, where the database returned one.
    """

    vulnerable: dict[Component, list[str]] = field(default_factory=dict)
    unanswered: dict[Component, str] = field(default_factory=dict)
    described: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """Return 1 for a vulnerability, 2 for an audit that is not complete, 0 for neither."""
        if any(self.vulnerable.values()):
            return 1
        return 2 if self.unanswered or not self.vulnerable else 0


class NoAnswerError(Exception):
    """The database did not respond, or its response is in no known form."""


def audit(components: Sequence[Component], database: str, timeout: float) -> Audit:
    """Query the database for all components; after a failed request, try the remaining ones all the same."""
    found = Audit()
    with requests.Session() as session:
        for portion in _portions(components):
            _query(session, database, timeout, portion, found)
        _hold_to_canaries(session, database, timeout, components, found)
        for vulnerability in sorted({name for names in found.vulnerable.values() for name in names}):
            try:
                page = _json(session, "GET", f"{database}/v1/vulns/{vulnerability}", timeout)
            except NoAnswerError:  # the vulnerability is reported without it
                continue
            words = " ".join(str(page.get("summary") or "").split())
            found.described[vulnerability] = "".join(letter for letter in words if letter.isprintable())
    return found


def _portions(components: Sequence[Component]) -> Iterator[Sequence[Component]]:
    for begin in range(0, len(components), PER_REQUEST):
        yield components[begin : begin + PER_REQUEST]


def _query(
    session: requests.Session, database: str, timeout: float, components: Sequence[Component], found: Audit
) -> None:
    """Query for some components, page after page; a component has a response when its last page has come."""
    names: dict[Component, list[str]] = {one: [] for one in components}
    waiting: dict[Component, str] = dict.fromkeys(components, "")
    for _ in range(MOST_PAGES):
        queries = [_asked(one) | ({"page_token": token} if token else {}) for one, token in waiting.items()]
        try:
            page = _json(session, "POST", f"{database}/v1/querybatch", timeout, {"queries": queries})
            results = _results(page, len(queries))
        except NoAnswerError as failed:
            found.unanswered |= dict.fromkeys(waiting, str(failed))
            break
        for one, (vulnerabilities, _) in zip(waiting, results, strict=True):
            names[one] += vulnerabilities
        waiting = {one: token for one, (_, token) in zip(waiting, results, strict=True) if token}
        if not waiting:
            break
    else:
        found.unanswered |= dict.fromkeys(waiting, f"more than {MOST_PAGES} pages")
    found.vulnerable |= {one: known for one, known in names.items() if known or one not in found.unanswered}


def _hold_to_canaries(
    session: requests.Session, database: str, timeout: float, components: Sequence[Component], found: Audit
) -> None:
    """Count no package, or no jar, as clean if the database lacks well-known vulnerabilities."""
    known = Audit()
    _query(session, database, timeout, CANARIES, known)
    for canary in CANARIES:
        if not known.vulnerable.get(canary):
            lacks = f"the database has no vulnerability of {canary.purl}, which is vulnerable"
            for one in (one for one in components if one.is_jar == canary.is_jar):
                found.unanswered.setdefault(one, known.unanswered.get(canary, lacks))
                if not found.vulnerable.get(one):
                    found.vulnerable.pop(one, None)


def _asked(component: Component) -> dict[str, Any]:
    """Return the query for a component, by the names that OSV's ecosystems have."""
    purl = component.purl
    name = f"{purl.namespace}:{purl.name}" if component.is_jar else purl.name
    return {
        "package": {"ecosystem": "Maven" if component.is_jar else "PyPI", "name": name},
        "version": purl.version,
    }


def _results(page: dict[str, Any], expected: int) -> list[tuple[list[str], str]]:
    """Return the identifiers and the token of the next page, for each query."""
    results = page.get("results")
    if not isinstance(results, list) or len(results) != expected:
        raise NoAnswerError(f"no {expected} results in the response")
    try:
        found = [
            ([str(one["id"]) for one in each.get("vulns") or ()], str(each.get("next_page_token") or ""))
            for each in results
        ]
    except (AttributeError, KeyError, TypeError):
        raise NoAnswerError("a result has not the form that OSV documents") from None
    if strange := [name for names, _ in found for name in names if not _IDENTIFIER.fullmatch(name)]:
        raise NoAnswerError(f"{strange[0]!r} is no identifier of a vulnerability")
    return found


def _json(
    session: requests.Session, method: str, address: str, timeout: float, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    try:
        response = session.request(method, address, json=body, timeout=timeout)
    except requests.RequestException as failed:
        raise NoAnswerError(f"{type(failed).__name__}: {failed}") from None
    if not response.ok:
        raise NoAnswerError(f"HTTP {response.status_code} {response.reason}")
    try:
        page = response.json()
    except requests.JSONDecodeError:
        raise NoAnswerError("the response is no JSON") from None
    if not isinstance(page, dict):
        raise NoAnswerError("the response is no object")
    return page


def report(found: Audit, components: Sequence[Component], database: str) -> Iterator[str]:
    """Give the lines of the report; the last one is the verdict."""
    vulnerable = {one: names for one, names in found.vulnerable.items() if names}
    for one, names in vulnerable.items():
        yield f"VULNERABLE  {one.purl}"
        yield from (
            f"            {name}  {found.described.get(name, '')}".rstrip() for name in dict.fromkeys(names)
        )
    for reason in dict.fromkeys(found.unanswered.values()):
        without = [one for one, why in found.unanswered.items() if why == reason]
        yield f"NOT AUDITED {_counted(without)}: {reason}"
        yield from (f"            {one.purl}" for one in without)
    yield NOT_COVERED
    answered = [one for one in components if one not in found.unanswered]
    yield f"{database} responded for {_counted(answered)}, of {_counted(components)}."
    if found.exit_code == 1:
        yield (
            f"Result: vulnerable: {_counted(list(vulnerable))}. Not audited: "
            f"{_counted(list(found.unanswered))}."
        )
    elif found.exit_code == 2:  # noqa: PLR2004 - the docstring of the module has the three
        yield (
            f"Result: not audited: {_counted(list(found.unanswered))}. Fix: run it where {database} can be "
            "reached, or let OSV_URL name a database that answers like it."
        )
    else:
        yield "Result: no known vulnerabilities."


def _counted(components: Sequence[Component]) -> str:
    jars = sum(one.is_jar for one in components)
    return f"{len(components) - jars} Python packages and {jars} jars"


def main(words: list[str] | None = None) -> int:
    """Audit all components and print the report."""
    parser = argparse.ArgumentParser(
        prog="python -m supply_chain.audit", description="Query a vulnerability database for all components."
    )
    database = os.environ.get("OSV_URL") or OSV
    parser.add_argument(
        "--database", default=database, metavar="URL", help="an OSV API [default: OSV_URL, or %(default)s]"
    )
    parser.add_argument(
        "--timeout", type=float, default=30, metavar="SECONDS", help="per request [default: %(default)s]"
    )
    chosen = parser.parse_args(words)
    components, address = read_components(), chosen.database.rstrip("/")
    found = audit(components, address, chosen.timeout)
    print(*report(found, components, address), sep="\n")  # noqa: T201 - a command
    return found.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
