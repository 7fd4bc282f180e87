"""Sees every container that a machine makes, and remembers it when it is removed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from controlplane.contract.states import FailureKind
from tests.simulation.machines import Machine
from tests.simulation.timeline import Timeline
from workers.attempt.outcome import STOPPED, TIMEOUT
from workers.drivers.memory import FakeContainer


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A container and its machine. `begun_at`: when it was made."""

    machine: Machine
    life: FakeContainer
    begun_at: datetime

    @property
    def uid(self) -> str:
        """Of its attempt."""
        return self.life.launch.uid

    @property
    def task_id(self) -> int:
        """The task that it is an attempt of."""
        return self.life.launch.run.task_id

    @property
    def job_id(self) -> int:
        """The job that it belongs to."""
        return self.life.launch.spec.job_id

    @property
    def group(self) -> str:
        """The group that it belongs to."""
        return self.life.launch.spec.group

    @property
    def exists(self) -> bool:
        """Return whether it was created or reported so: not if it was stopped before its start."""
        return self.machine.engine.starts[self.uid] > 0

    @property
    def has_started(self) -> bool:
        """Whether its program began."""
        return self.life.starts_at <= min(self.machine.wall(), self.life.ends_at)

    @property
    def started_at(self) -> float:
        """When its program began, by the clock of the world."""
        return self.machine.world_time(self.life.starts_at)

    @property
    def ended_at(self) -> float:
        """When its program ended, or will, by the clock of the world."""
        return self.machine.world_time(self.life.ends_at)

    @property
    def has_succeeded(self) -> bool:
        """Whether its program ended by itself, and well."""
        end = self.life.end
        has_ended = self.has_started and self.life.ends_at <= self.machine.wall()
        return has_ended and end.exit_code == 0 and end.failure_kind is None

    @property
    def has_failed(self) -> bool:
        """Whether its program ended by itself, and badly."""
        end = self.life.end
        has_ended = self.has_started and self.life.ends_at <= self.machine.wall()
        is_own = end.failure_kind in (None, FailureKind.USER)
        is_ordered = end.reason in (STOPPED, TIMEOUT)
        return has_ended and is_own and not is_ordered and bool(end.exit_code)

    @property
    def is_living(self) -> bool:
        """Whether its program runs."""
        return self.life.starts_at <= self.machine.wall() < self.life.ends_at


class Witness:
    """All containers that there were. `on_begin` is called for each new one."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._seen: list[Seen] = []
        self.on_begin: Callable[[Seen], None] = lambda seen: None

    def watch(self, machine: Machine) -> None:
        """From now on all containers of `machine` are seen."""
        machine.engine.lives = _Watched(lambda life: self._note(machine, life))

    def all(self) -> Iterator[Seen]:
        """All, oldest first."""
        return iter(self._seen)

    def of_job(self, job_id: int | None, group: str | None = None) -> list[Seen]:
        """Those of a job, or of one group of it."""
        return [
            seen for seen in self._seen if seen.job_id == job_id and group in (None, seen.group)
        ]

    def of_task(self, task_id: int) -> list[Seen]:
        """Those of a task."""
        return [seen for seen in self._seen if seen.task_id == task_id]

    def _note(self, machine: Machine, life: FakeContainer) -> None:
        seen = Seen(machine, life, self._timeline.datetime())
        self._seen.append(seen)
        self.on_begin(seen)


class _Watched(dict[str, FakeContainer]):
    def __init__(self, note: Callable[[FakeContainer], None]) -> None:
        super().__init__()
        self._note = note

    def __setitem__(self, uid: str, life: FakeContainer) -> None:
        super().__setitem__(uid, life)
        self._note(life)
