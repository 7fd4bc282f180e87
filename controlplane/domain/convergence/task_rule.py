"""What a rule is that decides about one task at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import AttemptFacts, TaskFacts


class Decide(Protocol):
    """Decides about one task."""

    def __call__(self, facts: TaskFacts, *, now: datetime) -> ChangeTask:
        """The change."""


@dataclass(frozen=True, slots=True)
class TaskRule:
    """One rule: `holds` says to which tasks it may apply, `decide` what follows.

    Whether one's time is over is for the statement of `queries.convergence` that finds it.
    """

    name: str
    decide: Decide
    holds: Callable[[TaskFacts, datetime], bool]


def unreleased(facts: TaskFacts) -> AttemptFacts | None:
    """The attempt that holds the task, if one does."""
    attempt = facts.attempt
    return attempt if attempt is not None and attempt.released_at is None else None
