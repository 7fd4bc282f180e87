"""The tick of callbacks: a message says that some may be due; they are tried beside it."""

from datetime import timedelta
from typing import Any

from celery import shared_task
from celery.signals import worker_shutdown

from controlplane import clock
from controlplane.commands.state.tick_runs import note_run, take_wake
from controlplane.ticks.callback_delivery import CallbackDelivery

NAME = "callbacks"
# Several of its own rounds, and few of those after which the tick is called late.
_LATELY = timedelta(seconds=20)
_FIRST_LOOK_SECONDS = 2.0

_courier: CallbackDelivery | None = None


@shared_task(name="controlplane.ticks.callbacks")
def callbacks(woken: bool = False) -> None:
    """What beat and wakes send. The clock's runs are noted: /readyz asks for the last.

    One is noted only if the courier has found out lately what is due: nothing is well while the
    message comes and nothing is delivered.
    """
    global _courier
    take_wake(NAME)
    if _courier is None or not _courier.is_alive:
        _courier = CallbackDelivery().start()
        _courier.look()
        # So that the first run is noted, and not only the clock's next one.
        _courier.wait_for_first_look(_FIRST_LOOK_SECONDS)
    else:
        _courier.look()
    if not woken:
        now, claimed_at = clock.now(), _courier.claimed_at
        if claimed_at is not None and now - claimed_at <= _LATELY:
            note_run(NAME, started_at=now, finished_at=now, counts={})


@worker_shutdown.connect
def _stop(**_: Any) -> None:
    if _courier is not None:
        _courier.stop()
