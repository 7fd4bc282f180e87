"""The tick of callbacks: a message wakes it; the tries run in other threads."""

from datetime import timedelta
from typing import Any

from celery import Task, shared_task
from celery.signals import worker_shutdown

from controlplane import clock
from controlplane.commands.state.tick_runs import note_run
from controlplane.outbox.wakes import take_wake
from controlplane.ticks.callback_delivery import CallbackDelivery

NAME = "callbacks"
# Several of its own rounds, and few of those after which the tick is called late.
_LATELY = timedelta(seconds=20)
_FIRST_POLL_SECONDS = 2.0


class CallbacksTask(Task):
    """The task, of which a process has one instance; it owns the delivery of the process."""

    def __init__(self) -> None:
        self.delivery: CallbackDelivery | None = None


@shared_task(name="controlplane.ticks.callbacks", base=CallbacksTask, bind=True)
def callbacks(self: CallbacksTask, woken: bool = False) -> None:
    """What beat and wakes send. The clock's runs are noted: /readyz asks for the last.

    One is noted only if the delivery has found out lately what is due: nothing is well while the
    message comes and nothing is delivered.
    """
    take_wake(NAME)
    delivery = self.delivery
    if delivery is None or not delivery.is_alive:
        self.delivery = delivery = CallbackDelivery().start()
        delivery.poll()
        # So that the first run is noted, and not only the clock's next one.
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
