"""Interface of the convergence rules that decide about one task at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import AttemptFacts, TaskFacts


class Decide(Protocol):
    """Decides about one task."""

    def __call__(self, facts: TaskFacts, *, now: datetime) -> ChangeTask:
        """Return the change."""


@dataclass(frozen=True, slots=True)
class TaskRule:
    """One rule: `holds` selects the tasks it may apply to, `decide` returns the change.

    The statement in `queries.convergence` that finds the tasks checks the time limits.
    """

    name: str
    decide: Decide
    holds: Callable[[TaskFacts, datetime], bool]


def unreleased(facts: TaskFacts) -> AttemptFacts | None:
    """Return the attempt that holds the task, if one does."""
    attempt = facts.attempt
    return attempt if attempt is not None and attempt.released_at is None else None
