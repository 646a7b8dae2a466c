"""Judge facts of a deployment by rules. Each result has advice: what to change, and why.

The advice is that of docs/production.md. A fact that could not be read gives UNKNOWN, never OK. Queries
nothing.

>>> rule = Rule(
...     "records", ("retention.ms",), lambda kept: OK("enough") if int(kept) > 70 else FAIL(kept, "raise it")
... )
>>> [one.message for one in run_rules("topic orders", [rule], {"retention.ms": "120"})]
['enough']
>>> [one.outcome.value for one in run_rules("topic orders", [rule], {})]
['?']
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


class Outcome(Enum):
    """The outcome of a check."""

    OK = "ok"
    WARN = "warn"
    """It works now, and causes trouble later; or it is slower than necessary."""
    FAIL = "FAIL"
    """Something is rejected, lost or stuck."""
    UNKNOWN = "?"
    """It could not be checked."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check: a message with numbers, and advice unless the outcome is OK."""

    outcome: Outcome
    message: str
    advice: str = ""


OK = partial(CheckResult, Outcome.OK)
WARN = partial(CheckResult, Outcome.WARN)
FAIL = partial(CheckResult, Outcome.FAIL)
UNKNOWN = partial(CheckResult, Outcome.UNKNOWN)


@dataclass(frozen=True)
class Finding:
    """The result of one check, with its area and its name."""

    area: str
    check: str
    result: CheckResult

    @property
    def outcome(self) -> Outcome:
        """The outcome of the check."""
        return self.result.outcome

    @property
    def message(self) -> str:
        """The message of the result."""
        return self.result.message

    def as_json(self) -> dict[str, str]:
        """Return the finding as one flat object."""
        answer = self.result
        return {
            "area": self.area,
            "check": self.check,
            "outcome": answer.outcome.name.lower(),
            "message": answer.message,
            "fix": answer.advice,
        }


@dataclass(frozen=True)
class Unavailable:
    """A placeholder for facts that could not be read, with the reason."""

    reason: str


@dataclass(frozen=True)
class Rule:
    """One check.

    Attributes:
        check: the name of the check.
        required_facts: the names of the facts, in the order of the arguments of ``judge``.
        judge: judges the facts.
    """

    check: str
    required_facts: tuple[str, ...]
    judge: Callable[..., CheckResult]


def run_rules(
    area: str, rules: Iterable[Rule], known_facts: Mapping[str, Any] | Unavailable
) -> Iterator[Finding]:
    """Yield a finding for each rule; without any facts, one finding that names all rules.

    Args:
        area: the area of the findings.
        rules: the rules to apply.
        known_facts: facts by name. A rule that needs an ``Unavailable`` or a missing fact gives UNKNOWN.
    """
    rules = list(rules)
    if isinstance(known_facts, Unavailable):
        named = ", ".join(rule.check for rule in rules)
        check = "settings" if rules[1:] else named
        yield Finding(area, check, UNKNOWN(f"not checked: {named}", known_facts.reason))
        return
    for rule in rules:
        facts = [
            known_facts.get(name, Unavailable(f"{name} is not visible to this client"))
            for name in rule.required_facts
        ]
        untold = next((one for one in facts if isinstance(one, Unavailable)), None)
        answer = rule.judge(*facts) if untold is None else UNKNOWN("not checked", untold.reason)
        yield Finding(area, rule.check, answer)
