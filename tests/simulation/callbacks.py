"""The process that delivers callbacks, and receivers that answer, refuse or never reply.

Only what goes over the wire is replaced; what is claimed and what comes of it is of production.
"""

from collections import Counter
from datetime import UTC, datetime
from functools import partial
from random import Random

from django.conf import settings

from controlplane.commands.callbacks import (
    ClaimedCallback,
    DeliveryAttempt,
    claim_callbacks,
    record_try,
)
from controlplane.config.beat import WOKEN_INTERVAL_SECONDS
from controlplane.outbox.wakes import take_wake
from controlplane.queries.sql import rows
from tests.simulation.control import TickPart
from tests.simulation.machines import Surroundings

NAME = "callbacks"
URL = "http://receiver.example/ended"
_WELL = (200, 204)


_UNTOLD = """
SELECT 'task ' || t.id FROM controlplane_job j JOIN controlplane_task t ON t.job_id = j.id
WHERE j.callback_on = 'task' AND j.deleted_at IS NULL AND t.finished_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM controlplane_callback k WHERE k.task_id = t.id)
UNION ALL
SELECT 'job ' || j.id FROM controlplane_job j
WHERE j.callback_on = 'job' AND j.deleted_at IS NULL AND j.settled_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM controlplane_callback k WHERE k.job_id = j.id)
"""


class Callbacks(TickPart):
    """`wrong`: what no receiver may ever see. `delivered`: how often each callback was accepted."""

    def __init__(self, around: Surroundings, rng: Random) -> None:
        super().__init__(NAME, around, WOKEN_INTERVAL_SECONDS)
        self._rng = rng
        self._life = 0
        self._lost: set[int] = set()
        self._in_flight: set[int] = set()
        self.is_receiver_well = False
        self.wrong: list[str] = []
        self.delivered: Counter[int] = Counter()

    def die(self) -> None:
        """Whatever it was trying is lost; it may have been taken all the same."""
        super().die()
        self._life += 1
        self._lost |= self._in_flight
        self._in_flight.clear()

    def tick(self, woken: bool) -> None:
        take_wake(NAME)
        for item in claim_callbacks(now=self._around.timeline.datetime()).items:
            self._try(item)

    def _try(self, item: ClaimedCallback) -> None:
        number = item.callback_id
        if number in self._in_flight:
            self.wrong.append(f"callback {number} is tried twice at the same time")
        if self.delivered[number] and number not in self._lost:
            self.wrong.append(f"callback {number} is tried again, though it was delivered")
        self._in_flight.add(number)
        began = self._around.timeline.now
        status, seconds = self._draw_answer()
        answered = partial(self._answered, item, began, status, self._life)
        self._around.timeline.after(seconds, answered)

    def _draw_answer(self) -> tuple[int | None, float]:
        """Draw the receiver's status and its delay; None: no response."""
        if self.is_receiver_well:
            return 200, self._rng.uniform(0.01, 1.0)
        status = self._rng.choice([200, 200, 204, 404, 503, 503, None])
        seconds = settings.CELLRUN.callback_seconds
        return status, seconds if status is None else self._rng.uniform(0.01, seconds)

    def _answered(self, item: ClaimedCallback, began: float, status: int | None, life: int) -> None:
        if status in _WELL:
            self.delivered[item.callback_id] += 1
        self._noted(item, began, status, life)

    def _noted(self, item: ClaimedCallback, began: float, status: int | None, life: int) -> None:
        if life != self._life:
            return
        if not self.can_work:  # it is stopped, or in the middle of something else
            self._around.timeline.after(1.0, partial(self._noted, item, began, status, life))
            return
        self._around.note(f"callback {item.callback_id}, try {item.number}: {status}")
        error = "" if status in _WELL else f"answered {status}"
        now = self._around.timeline.datetime()
        tried = DeliveryAttempt(datetime.fromtimestamp(began, UTC), now, status, error)
        self.work(lambda: self._note(item, tried))

    def _note(self, item: ClaimedCallback, tried: DeliveryAttempt) -> None:
        record_try(item, tried)
        self._in_flight.discard(item.callback_id)

    def what_is_left(self) -> list[str]:
        """Callbacks that are not over, in words."""
        found = rows(
            "SELECT id, state, last_error FROM controlplane_callback"
            " WHERE ended_at IS NULL ORDER BY id"
        )
        return [f"callback {number} is {state} ({error})" for number, state, error in found]

    def check(self) -> list[str]:
        """Return what is wrong, in words: also callbacks marked delivered that were not."""
        found = rows("SELECT id FROM controlplane_callback WHERE state = 'delivered' ORDER BY id")
        wrong = self.wrong + [
            f"callback {number} is called delivered, but no receiver accepted it"
            for (number,) in found
            if not self.delivered[number]
        ]
        return wrong + [
            f"no receiver will get {what}, though its job requests it" for (what,) in rows(_UNTOLD)
        ]
