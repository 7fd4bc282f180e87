"""What a hook is: the kind of a job (`kind: batch`), which shapes the life of its tasks.

Source: Backend.AI, whose sessions are batch, interactive or inference, each with a hook of its own.
"""

from dataclasses import dataclass
from typing import Protocol

from controlplane.domain.transitions import Event


class Refusal(ValueError):
    """What is wrong with the terms, and in which field of the group that is."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a group that its job's kind may refuse, or change before anything is placed.

    `timeout_seconds`: of an attempt. `idle_timeout_seconds`, `lifetime_seconds`: after which its
    cell ends it. `has_health_check`: it is RUNNING only once that passed. `ports`: by name.
    """

    timeout_seconds: float | None = None
    idle_timeout_seconds: float | None = None
    lifetime_seconds: float | None = None
    has_health_check: bool = False
    ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """The end of an attempt as its cell told it: EXITED_ZERO, USER_FAILED, SYSTEM_FAILED, VANISHED.

    `was_running`: it had been RUNNING before. `exit_code`: None if no program of it ended.
    """

    event: Event
    was_running: bool
    exit_code: int | None = None


class Hook(Protocol):
    """One kind of job."""

    def prepare(self, terms: Terms) -> Terms:
        """The terms as they are for this kind. Raises Refusal, or ValueError."""

    def on_end(self, end: End) -> Event:
        """What the end means for the task: an event for which the transition table has a row."""
