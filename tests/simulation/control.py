"""The processes of the control plane: production ticks and inbox; each stalls and dies alone."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.conf import settings
from django.db import connection

from controlplane.commands.convergence.runner import Memory
from controlplane.contract.wire.queues import INBOX_QUEUES
from controlplane.inbox.batches import Inbox
from controlplane.inbox.consumer import ANSWER_PAUSE_SECONDS, LINGER_SECONDS, MAX_MESSAGES
from controlplane.outbox.wakes import take_wake
from controlplane.ticks import convergence, placement, retention
from tests.simulation.bus import body_of, task_of
from tests.simulation.machines import Surroundings
from tests.simulation.timeline import Killed

RESTART_SECONDS = 2.0
# What beat sends while a worker is away waits on its queue; the worker drops what is too old.
MAX_WAITING_TICKS = 3
# Begins the processing of due schedules.
_FIRING = "SELECT s.id FROM controlplane_schedule s"

PARTS = ("placement", "convergence", "inbox")


class Part:
    """One process; paused, its messages wait. `doom`: statements left until it is killed."""

    def __init__(self, name: str, around: Surroundings) -> None:
        self.name = name
        self._around = around
        self.is_paused = False
        self.doom: int | None = None
        self.restart_seconds = RESTART_SECONDS
        self.is_busy = False
        # Called before each statement that is not part of a transaction.
        self.on_gap: Callable[[], None] = lambda: None

    @property
    def can_work(self) -> bool:
        """Whether it takes messages now."""
        return not (self.is_paused or self.is_busy)

    def work(self, action: Callable[[], None]) -> None:
        """Do `action`; the process may be killed at any of its statements."""
        self.is_busy = True
        try:
            with connection.execute_wrapper(self._count):
                action()
        except Killed:
            self._around.note(f"{self.name} is killed")
            self.doom = None
            self.die()
        finally:
            self.is_busy = False

    def die(self) -> None:
        """Gone, and back after a while: supervisor starts it again."""
        self.is_paused = True
        self._around.timeline.after(self.restart_seconds, self.resume)
        self.restart_seconds = RESTART_SECONDS

    def resume(self) -> None:
        """Work again, beginning with what waits."""
        self.is_paused = False
        self.poll()

    def poll(self) -> None:
        """See whether there is something to do."""

    def _count(self, execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        self.before(sql)
        if self.doom is not None:
            self.doom -= 1
            if self.doom < 0:
                raise Killed
        if not connection.in_atomic_block:
            self.on_gap()
        return execute(sql, *args)

    def before(self, sql: str) -> None:
        """See each statement before it is executed."""


class TickPart(Part):
    """A Celery worker that runs one tick."""

    def __init__(self, name: str, around: Surroundings, interval: float) -> None:
        super().__init__(name, around)
        around.timeline.every(interval, self._beat, first=around.rng.uniform(0.1, interval))

    def _beat(self) -> None:
        if self._around.bus.count(self.name) < MAX_WAITING_TICKS and not self._around.bus.is_down:
            self._around.bus.push_from_cell([(self.name, "beat")])

    def poll(self) -> None:
        """Take what lies on the queue, one by one."""
        while self.can_work:
            found = self._around.bus.take(self.name, 1)
            if not found:
                return
            self.work(partial(self.answer, found[0]))

    def answer(self, message: str) -> None:
        """Do what beat's message or a wake requests."""
        self.tick(message != "beat" and bool(body_of(message)[0][0]))

    def tick(self, woken: bool) -> None:
        """What the Celery task does."""


class Placement(TickPart):
    """Places; `controlplane.ticks.placement.tick` with virtual time and without pauses."""

    def __init__(self, name: str, around: Surroundings, interval: float) -> None:
        super().__init__(name, around, interval)
        self._idleness = placement.Idleness()

    def tick(self, woken: bool) -> None:
        now = self._around.timeline.now
        placement.tick(self._idleness, woken=woken, timer=lambda: now)


class Convergence(TickPart):
    """Converges; `controlplane.ticks.convergence.convergence`."""

    def __init__(self, name: str, around: Surroundings, interval: float) -> None:
        super().__init__(name, around, interval)
        self._memory = Memory()
        # Called after each tick, also if it was killed (only in worlds with schedules).
        self.on_tick: Callable[[], None] = lambda: None
        # Statements until it is killed, from the next one on that reads due schedules.
        self.doom_in_firing: int | None = None

    def die(self) -> None:
        """All that it knew is gone."""
        super().die()
        self._memory = Memory()
        self.on_tick()

    def answer(self, message: str) -> None:
        if message != "beat" and task_of(message) == retention.retention.name:
            take_wake("retention")
            retention.run(memory=self._memory)
        else:
            super().answer(message)

    def before(self, sql: str) -> None:
        """Begin to count down when schedules are fired."""
        if self.doom_in_firing is not None and sql.startswith(_FIRING):
            self.doom, self.doom_in_firing = self.doom_in_firing, None

    def tick(self, woken: bool) -> None:
        take_wake("convergence")
        convergence.run(woken=woken, memory=self._memory)
        self.on_tick()


class InboxPart(Part):
    """Drains the shards as `controlplane.inbox.consumer.InboxStep` does."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__("inbox", around)
        self._inbox = self._begin()
        self._is_planned = False
        self._answer_number = 0

    @staticmethod
    def _begin() -> Inbox:
        return Inbox.with_settings()

    def die(self) -> None:
        """All that it knew is gone."""
        super().die()
        self._inbox = self._begin()

    def poll(self) -> None:
        """Wait a moment for company, then apply."""
        if not self._is_planned and not self.is_paused:
            self._is_planned = True
            self._around.timeline.after(LINGER_SECONDS, self._flush)

    def _flush(self) -> None:
        self._is_planned = False
        if self.can_work:
            self.apply()

    def apply(self) -> None:
        """Apply what lies in the shards."""
        batch: list[tuple[str, str]] = []
        for queue in INBOX_QUEUES:
            found = self._around.bus.take(queue, MAX_MESSAGES - len(batch))
            batch += [(body_of(message), queue) for message in found]
        inbox, messages = self._inbox, [message for message, _ in batch]
        self.work(lambda: inbox.apply(messages, [queue for _, queue in batch]))
        if any(self._around.bus.count(queue) for queue in INBOX_QUEUES):
            self.poll()
        self._plan_answer()

    def _plan_answer(self) -> None:
        """Flush when waiting heartbeats are due, unless a flush before has planned anew."""
        self._answer_number += 1
        number, seconds = self._answer_number, self._inbox.seconds_until_answer
        if seconds is not None:
            pause = max(seconds, ANSWER_PAUSE_SECONDS)
            self._around.timeline.after(pause, lambda: self._answer(number))

    def _answer(self, number: int) -> None:
        if number == self._answer_number:
            self._flush()


class ControlPlane:
    """Its three processes. They share what they know by the database alone."""

    def __init__(self, around: Surroundings) -> None:
        cellrun = settings.CELLRUN
        self._around = around
        self.placement = Placement("placement", around, cellrun.placement_interval_seconds)
        self.convergence = Convergence("convergence", around, cellrun.convergence_interval_seconds)
        self.inbox = InboxPart(around)
        # Only in worlds with callbacks (`callbacks.Callbacks`).
        self.callbacks: TickPart | None = None
        self.parts: dict[str, Part] = {
            "placement": self.placement,
            "convergence": self.convergence,
            "inbox": self.inbox,
        }

    def arrived(self, queue: str) -> None:
        """A message lies in `queue`."""
        part = self.inbox if queue.startswith("inbox.") else self.parts.get(queue)
        if queue == "callbacks":
            part = self.callbacks
        if part is not None:
            part.poll()

    def interleave(self) -> None:
        """Between two transactions of one process another one gets its turn."""
        assert not connection.in_atomic_block
        part = self._around.rng.choice(list(self.parts.values()))
        if not part.can_work:
            return
        if isinstance(part, TickPart):
            part.work(lambda: part.tick(False))
        else:
            self.inbox.apply()
