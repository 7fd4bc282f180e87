"""Retry rules of a group (`on_exit`): the first match decides whether a failure is retried.

Sources: AWS Batch, `evaluateOnExit` ("the first match determines the action"); Kubernetes,
`podFailurePolicy`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.domain.state.growth import GrownRequest, ResourceGrowth, read_growth
from controlplane.domain.state.states import Reason, RetryAction

RULED_REASONS = (
    Reason.EXIT_STATUS,
    Reason.OUT_OF_MEMORY,
    Reason.IMAGE_ERROR,
    Reason.COMMAND_ERROR,
    Reason.USER_ERROR,
    Reason.INPUT_CORRUPT,
    Reason.SYSTEM_FAILURE,
    Reason.BUILD_TIMEOUT,
)
"""Reasons that a rule may have, in the order of the documentation."""


@dataclass(frozen=True, slots=True)
class RetryRule:
    """One rule. Without `codes` it matches any exit code, without `reason` any reason.

    `growth`: of the request for the next attempts.
    """

    action: RetryAction
    codes: frozenset[int] = frozenset()
    reason: Reason | None = None
    growth: tuple[ResourceGrowth, ...] = ()

    def matches(self, reason: Reason, exit_code: int | None) -> bool:
        """Return whether an end for `reason` with `exit_code` meets all conditions of the rule."""
        if self.codes and exit_code not in self.codes:
            return False
        return self.reason is None or self.reason is reason

    def as_dict(self) -> dict[str, Any]:
        """Return the rule as stored."""
        found: dict[str, Any] = {"do": self.action.value}
        if self.codes:
            found["codes"] = sorted(self.codes)
        if self.reason is not None:
            found["reason"] = self.reason.value
        if self.growth:
            found["resources"] = {item.name: item.as_dict() for item in self.growth}
        return found


@dataclass(frozen=True, slots=True)
class MatchedRule:
    """The rule that decides on an end. `number`: its place in `on_exit`, from 1."""

    number: int
    action: RetryAction
    growth: tuple[ResourceGrowth, ...] = ()

    @property
    def name(self) -> str:
        """Return how texts name it."""
        return f"rule {self.number} of on_exit"

    def describe(self, *, is_retried: bool, grown: GrownRequest | None = None) -> str:
        """Return the effect of the rule for the history; `grown`: the request of the retry."""
        if self.action is RetryAction.FAIL:
            return f"{self.name} fails the task"
        if grown is not None and grown.refusal:
            return f"{self.name} {grown.refusal}: the task fails"
        if not is_retried:
            return f"{self.name} retries, but no retry is left"
        return f"{self.name} retries the task" + (f": {grown.text}" if grown is not None else "")


def read_rules(stored: Iterable[Mapping[str, Any]]) -> tuple[RetryRule, ...]:
    """Return the rules of a stored list."""
    return tuple(
        RetryRule(
            action=RetryAction(item["do"]),
            codes=frozenset(item.get("codes", ())),
            reason=Reason(item["reason"]) if "reason" in item else None,
            growth=read_growth(item.get("resources", {})),
        )
        for item in stored
    )


def match_rule(
    rules: Sequence[RetryRule], reason: Reason, exit_code: int | None
) -> MatchedRule | None:
    """Return the first rule that matches an end, if any."""
    for number, rule in enumerate(rules, 1):
        if rule.matches(reason, exit_code):
            return MatchedRule(number, rule.action, rule.growth)
    return None
