"""The tick of callbacks: it starts and wakes the delivery, which runs in other threads."""

from datetime import timedelta
from typing import Any

from celery import Task, shared_task
from celery.signals import worker_shutdown

from controlplane import clock
from controlplane.commands.state.tick_runs import note_run
from controlplane.outbox.wakes import take_wake
from controlplane.ticks.callback_delivery import CallbackDelivery

NAME = "callbacks"
# Several periods of this tick, but much less than the time after which it counts as late.
_LATELY = timedelta(seconds=25)
_FIRST_POLL_SECONDS = 2.0


class CallbacksTask(Task):
    """The Celery task, one instance per process; it owns the delivery of the process."""

    def __init__(self) -> None:
        self.delivery: CallbackDelivery | None = None


@shared_task(name="controlplane.ticks.callbacks", base=CallbacksTask, bind=True)
def callbacks(self: CallbacksTask, woken: bool = False) -> None:
    """Wake the delivery, or start it; beat and wakes send this task.

    Record a periodic run, which /readyz reads, only after a recent successful claim: a tick that
    runs while its delivery does not must not count as ready.
    """
    take_wake(NAME)
    delivery = self.delivery
    if delivery is None or not delivery.is_alive:
        self.delivery = delivery = CallbackDelivery().start()
        delivery.poll()
        # So that the first run is recorded, too.
        delivery.wait_for_first_poll(_FIRST_POLL_SECONDS)
    else:
        delivery.poll()
    if not woken:
        now, claimed_at = clock.now(), delivery.claimed_at
        if claimed_at is not None and now - claimed_at <= _LATELY:
            note_run(NAME, started_at=now, finished_at=now, counts={})


@worker_shutdown.connect
def _stop(**_: Any) -> None:
    if callbacks.delivery is not None:
        callbacks.delivery.stop()
