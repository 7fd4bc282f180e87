"""The broker, simulated: its messages take time, and get lost, late, doubled, out of order."""

import base64
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import redis

from tests.simulation.timeline import Timeline

LATENCY_SECONDS = 0.02
REMEMBERED = 400
"""Old messages that may be delivered once more."""


@dataclass(slots=True)
class MessageFaults:
    """How likely a message is to be lost, sent twice or held up; and for how long at most."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    delay_seconds: float = 20.0


class SimulatedBus:
    """`controlplane.outbox.transport.Transport`; cells push to it too."""

    def __init__(self, timeline: Timeline, rng: Random) -> None:
        self._timeline = timeline
        self._rng = rng
        self._queues: dict[str, deque[str]] = {}
        self._claims: dict[str, float] = {}
        self._last_arrival: dict[str, float] = {}
        self._memory: deque[tuple[str, str]] = deque(maxlen=REMEMBERED)
        self._epoch = 0
        self.faults = MessageFaults()
        self.is_down = False
        self.on_arrival: Callable[[str], None] = lambda queue: None
        self.on_push: Callable[[], None] = lambda: None

    # ------------------------------------------------------------------ Transport

    def push(self, messages: Sequence[tuple[str, str]]) -> None:
        """Messages of the control plane. Raises ConnectionError while the broker is away."""
        self.on_push()
        self._refuse_if_down()
        for queue, message in messages:
            self._send(queue, message)

    def claim(self, name: str, seconds: float) -> bool:
        """As SET NX PX."""
        self._refuse_if_down()
        if self._claims.get(name, 0.0) > self._timeline.now:
            return False
        self._claims[name] = self._timeline.now + seconds
        return True

    def unclaim(self, name: str) -> None:
        """As DEL."""
        self._refuse_if_down()
        self._claims.pop(name, None)

    def drop(self, queue: str) -> None:
        """As DEL."""
        self._refuse_if_down()
        self._queues.pop(queue, None)

    def _refuse_if_down(self) -> None:
        if self.is_down:
            raise redis.ConnectionError("the broker is away")

    # ------------------------------------------------------------------ cells and consumers

    def push_from_cell(self, messages: Sequence[tuple[str, str]]) -> None:
        """Take messages of a cell; they are lost while the broker is away, as with Redis."""
        if not self.is_down:
            for queue, message in messages:
                self._send(queue, message)

    def take(self, queue: str, limit: int = 500) -> list[str]:
        """What lies in `queue`, oldest first; it is gone from there."""
        found = self._queues.get(queue)
        if self.is_down or not found:
            return []
        return [found.popleft() for _ in range(min(limit, len(found)))]

    def count(self, queue: str) -> int:
        """How many messages lie in `queue`."""
        return len(self._queues.get(queue, ()))

    # ------------------------------------------------------------------ faults

    def flush(self) -> None:
        """Empty the broker: queues, claims, and messages on their way."""
        self._epoch += 1
        self._queues.clear()
        self._claims.clear()

    def repeat_an_old_message(self) -> str:
        """Deliver once more what was delivered before; the queue's name."""
        if not self._memory or self.is_down:
            return "nothing"
        queue, message = self._rng.choice(self._memory)
        self._arrive(queue, message, self._epoch)
        return queue

    def _send(self, queue: str, message: str) -> None:
        rng, faults = self._rng, self.faults
        copies = 1
        if faults.drop and rng.random() < faults.drop:
            copies = 0
        elif faults.duplicate and rng.random() < faults.duplicate:
            copies = 2
        for number in range(copies):
            when = self._timeline.now + rng.uniform(0.001, LATENCY_SECONDS)
            if (faults.delay and rng.random() < faults.delay) or number:
                # Overtaken by what is sent later.
                when += rng.uniform(0.0, faults.delay_seconds)
            else:
                when = max(when, self._last_arrival.get(queue, 0.0))
                self._last_arrival[queue] = when
            epoch = self._epoch
            self._timeline.at(when, lambda epoch=epoch: self._arrive(queue, message, epoch))

    def _arrive(self, queue: str, message: str, epoch: int) -> None:
        if epoch != self._epoch or self.is_down:
            return
        self._memory.append((queue, message))
        self._queues.setdefault(queue, deque()).append(message)
        self.on_arrival(queue)


def task_of(message: str) -> str:
    """The task that a message of Celery's is for."""
    return str(json.loads(message)["headers"]["task"])


def body_of(message: str) -> Any:
    """The body of a message as a consumer gets it."""
    return json.loads(base64.b64decode(json.loads(message)["body"]))
