"""Usage of concurrency keys at each point of a pass, and again while its plan is carried out."""

from collections.abc import Iterable

from controlplane.domain.placement.model.concurrency import ConcurrencyRule, KeyUsage
from controlplane.domain.placement.reasons.explain import Reason, explain_concurrency


class KeyAccounting:
    """Account of the keys that placed and nominated tasks use.

    Each task obeys the limits of its own job; the attempts of all jobs with the key count.
    """

    def __init__(self, usage: Iterable[KeyUsage]) -> None:
        self._held: dict[int, int] = {}
        self._started: dict[int, dict[int, int]] = {}
        for item in usage:
            self._held[item.key_id] = item.held
            self._started[item.key_id] = dict(item.started)

    def copy(self) -> "KeyAccounting":
        """Return an independent account with the same usage."""
        return KeyAccounting(
            KeyUsage(key_id, held, self._started.get(key_id, {}))
            for key_id, held in self._held.items()
        )

    def held(self, rule: ConcurrencyRule) -> int:
        """Return the number of attempts that hold the key."""
        return self._held.get(rule.key_id, 0)

    def started(self, rule: ConcurrencyRule) -> int:
        """Return the number of starts within the span of the rule's rate; 0 without a rate."""
        if rule.starts is None:
            return 0
        return self._started.get(rule.key_id, {}).get(rule.starts.seconds, 0)

    def room(self, rule: ConcurrencyRule | None) -> int | None:
        """Return how many tasks with the rule may start now; None: any number."""
        if rule is None:
            return None
        left = []
        if rule.limit is not None:
            left.append(rule.limit - self.held(rule))
        if rule.starts is not None:
            left.append(rule.starts.count - self.started(rule))
        return max(min(left), 0) if left else None

    def book(self, rule: ConcurrencyRule | None, tasks: int) -> None:
        """Charge `tasks` starts with the rule; negative: refund them."""
        if rule is None:
            return
        self._held[rule.key_id] = self.held(rule) + tasks
        started = self._started.setdefault(rule.key_id, {})
        if rule.starts is not None:
            started.setdefault(rule.starts.seconds, 0)
        for seconds in started:
            started[seconds] += tasks

    def explain(self, rule: ConcurrencyRule, tasks: int) -> Reason:
        """Return why `tasks` tasks with the rule cannot start now."""
        return explain_concurrency(
            rule, held=self.held(rule), started=self.started(rule), requested=tasks
        )

    def claim(self, rule: ConcurrencyRule | None, tasks: int) -> int:
        """Charge as many of `tasks` starts as there is room for; return their number."""
        room = self.room(rule)
        claimed = tasks if room is None else min(tasks, room)
        self.book(rule, claimed)
        return claimed
