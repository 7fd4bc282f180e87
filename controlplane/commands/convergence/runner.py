"""Rules of convergence and their runner; a failing rule does not stop the others."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import structlog
from django.db import DatabaseError, Error, connection

from controlplane.commands.convergence.orphan_files import StoreWalk
from controlplane.commands.state.tick_alerts import TickAlerts, raise_repair
from controlplane.domain.convergence.policy import Policy
from controlplane.queries.convergence.due import find_due
from controlplane.queries.convergence.parameters import parameters_of

log = structlog.get_logger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Memory:
    """State of one process that saves repeated work. Its Celery task passes it to the rules.

    A new process begins without it; all state that must survive is in the database.
    """

    alerts: TickAlerts = field(default_factory=TickAlerts)
    store_walk: StoreWalk = field(default_factory=StoreWalk)


@dataclass(frozen=True, slots=True)
class RuleContext:
    """One run of convergence. `due`: the names in `queries.convergence.due` of sources with work.

    `covered_at`: when placement last considered all pending tasks.
    """

    now: datetime
    policy: Policy
    due: frozenset[str]
    covered_at: datetime | None = None
    memory: Memory = field(default_factory=Memory)

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the rules' statements."""
        return parameters_of(self.now, self.covered_at, self.policy)


@dataclass(frozen=True, slots=True)
class ConvergenceRule:
    """One rule: `run` is called if a source of `due` has work, and returns counts by name.

    `number`: its section of the specification, which several rules may share. `waits`: skipped
    during the grace period after a gap of the control plane, so that messages of cells come first.
    `on_wake`: also run by wakes, when something ended that others depend on. `is_repair`: its work
    raises an alert. `always`: called even if no source has work.
    """

    number: int
    name: str
    due: tuple[str, ...]
    run: Callable[[RuleContext], Mapping[str, int]]
    waits: bool = False
    on_wake: bool = False
    is_repair: bool = False
    always: bool = False


@dataclass
class RuleRunner:
    """Runs rules in order. The work of one may create work for later ones, so they check again."""

    rules: list[ConvergenceRule]
    now: datetime
    policy: Policy
    covered_at: datetime | None = None
    memory: Memory = field(default_factory=Memory)
    counts: Counter[str] = field(default_factory=Counter)
    phases: dict[str, int] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Run all rules. Raise only if the database is unavailable."""
        due = self._find_due(self.rules)
        for place, rule in enumerate(self.rules):
            if rule.name in self._failed or (not rule.always and due.isdisjoint(rule.due)):
                continue
            if self._run(rule, due):
                due = self._find_due(self.rules[place + 1 :])

    def guard(self, name: str, work: Callable[[], _T]) -> _T | None:
        """Run `work` and return its value; record its failure like that of a rule."""
        try:
            done = work()
            self.memory.alerts.clear_failure(name, now=self.now)
        except Exception as error:
            self._fail(name, error)
            return None
        return done

    def _find_due(self, rules: list[ConvergenceRule]) -> frozenset[str]:
        rules = [rule for rule in rules if rule.name not in self._failed]
        try:
            return self._find(rules)
        except Error:
            if not connection.is_usable():
                raise
            log.exception("look_failed")
        # One source cannot be read: query them rule by rule, so that only its rule fails.
        found: set[str] = set()
        for rule in rules:
            try:
                found |= self._find([rule])
            except Error as error:
                self._fail(rule.name, error)
        return frozenset(found)

    def _find(self, rules: list[ConvergenceRule]) -> frozenset[str]:
        sources = [source for rule in rules for source in rule.due]
        found = find_due(self.now, self.covered_at, self.policy, among=sources) if sources else ()
        return frozenset(found)

    def _run(self, rule: ConvergenceRule, due: frozenset[str]) -> bool:
        """Run a rule; return whether it did anything, or may have."""
        began = time.monotonic()
        try:
            done = rule.run(RuleContext(self.now, self.policy, due, self.covered_at, self.memory))
            self.memory.alerts.clear_failure(rule.name, now=self.now)
            if rule.is_repair and any(done.values()):
                raise_repair(rule.name, done, now=self.now)
        except Exception as error:  # a failing rule must not stop the others
            self._fail(rule.name, error)
            return True
        finally:
            self.phases[rule.name] = round((time.monotonic() - began) * 1000)
        if any(done.values()):
            self.counts.update(done)
        return any(done.values())

    def _fail(self, name: str, error: Exception) -> None:
        """Record the failure, such as a lock timeout or repeated deadlocks.

        Raise it if the database is unavailable.
        """
        if isinstance(error, Error) and not connection.is_usable():
            raise error
        self._failed.add(name)
        log.error("rule_failed", rule=name, exc_info=error)
        try:
            self.memory.alerts.raise_failure(name, error, now=self.now)
        except DatabaseError as other:
            log.error("failure_not_told", rule=name, exc_info=other)
