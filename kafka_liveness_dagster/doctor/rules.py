"""Judge facts of a deployment by rules, which say what to change, and why.

The advice is that of docs/production.md. Never asks anybody. What could not be asked is said so, and never
taken for well.

>>> rule = Rule(
...     "records", ("retention.ms",), lambda kept: OK("well") if int(kept) > 70 else FAIL(kept, "raise it")
... )
>>> [one.message for one in run_rules("topic orders", [rule], {"retention.ms": "120"})]
['well']
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
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    """It works, until something happens that it could be made to survive; or it is slower than it need be."""
    FAIL = "FAIL"
    """Something is refused, lost or stands still."""
    UNKNOWN = "?"
    """It could not be asked."""


@dataclass(frozen=True)
class CheckResult:
    """What one check found, in numbers, and what to change and why; no advice where all is well."""

    outcome: Outcome
    message: str
    advice: str = ""


OK = partial(CheckResult, Outcome.OK)
WARN = partial(CheckResult, Outcome.WARN)
FAIL = partial(CheckResult, Outcome.FAIL)
UNKNOWN = partial(CheckResult, Outcome.UNKNOWN)


@dataclass(frozen=True)
class Finding:
    """An answer, and to which question."""

    area: str
    check: str
    result: CheckResult

    @property
    def outcome(self) -> Outcome:
        """The answer's."""
        return self.result.outcome

    @property
    def message(self) -> str:
        """The answer's."""
        return self.result.message

    def as_json(self) -> dict[str, str]:
        """One flat object."""
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
    """Instead of facts: why there are none, and what helps."""

    reason: str


@dataclass(frozen=True)
class Rule:
    """One check.

    Attributes:
        check: its name.
        required_facts: the names of the facts it is told, in the order in which ``judge`` takes them.
        judge: decides.
    """

    check: str
    required_facts: tuple[str, ...]
    judge: Callable[..., CheckResult]


def run_rules(
    area: str, rules: Iterable[Rule], known_facts: Mapping[str, Any] | Unavailable
) -> Iterator[Finding]:
    """Each rule's answer; one that says which are left out, where nothing could be asked.

    Args:
        area: whose rules they are.
        rules: what to judge by.
        known_facts: facts by name; a fact that is ``Unavailable`` or missing leaves the rules that need it
            without an answer.
    """
    rules = list(rules)
    if isinstance(known_facts, Unavailable):
        named = ", ".join(rule.check for rule in rules)
        check = "settings" if rules[1:] else named
        yield Finding(
            area, check, UNKNOWN(f"could not be asked, so nothing is known of: {named}", known_facts.reason)
        )
        return
    for rule in rules:
        facts = [
            known_facts.get(name, Unavailable(f"{name} is not told to this client"))
            for name in rule.required_facts
        ]
        untold = next((one for one in facts if isinstance(one, Unavailable)), None)
        answer = rule.judge(*facts) if untold is None else UNKNOWN("could not be asked", untold.reason)
        yield Finding(area, rule.check, answer)
