"""The tick of hooks: kinds of jobs are called about what has become of attempts, for a while."""

from celery import shared_task

from controlplane import clock
from controlplane.commands.attempts.hook_calls import call_due
from controlplane.outbox import wakes
from controlplane.queries.jobs.hook_calls import is_any_call_due

NAME = "hooks"
SECONDS = 5.0
"""Callbacks are delivered by the same process: after so long their tick gets its turn."""


@shared_task(name="controlplane.ticks.hooks")
def hooks(_woken: bool = False) -> None:
    """What beat and wakes send."""
    wakes.take_wake(NAME)
    run()


def run() -> int:
    """Call what is due, as long as there is time; how much was called."""
    now = clock.now()
    if not is_any_call_due(now):
        return 0
    called, is_more = call_due(now=now, seconds=SECONDS)
    if is_more:
        wakes.wake_hooks()
    return called
