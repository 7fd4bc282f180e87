"""What a hook is: the kind of a job (`kind: batch`), which shapes the life of its tasks.

Source: Backend.AI, whose sessions are batch, interactive or inference, each with a hook of its own.
"""

from dataclasses import dataclass
from typing import Protocol

from controlplane.domain.transitions import Event


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a group that its job's kind may change before anything of it is placed.

    `timeout_seconds`: of an attempt. `idle_timeout_seconds`, `lifetime_seconds`: after which the
    cell ends it. `needs_health_check`: it is RUNNING only once its check has passed.
    """

    timeout_seconds: float | None = None
    idle_timeout_seconds: float | None = None
    lifetime_seconds: float | None = None
    has_health_check: bool = False
    needs_health_check: bool = False


class Hook(Protocol):
    """One kind of job."""

    def prepare(self, terms: Terms) -> Terms:
        """The terms as they are for this kind. Raises ValueError with what is wrong with them."""

    def on_end(self, event: Event) -> Event:
        """What the end of an attempt, told as `event` by its cell, means for its task."""
