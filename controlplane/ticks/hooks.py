"""The tick of hooks: call the hooks of job kinds for lifecycle events, within a time limit."""

from celery import shared_task

from controlplane import clock
from controlplane.commands.attempts.hook_calls import call_due
from controlplane.outbox import wakes
from controlplane.queries.jobs.hook_calls import is_any_call_due

NAME = "hooks"
SECONDS = 5.0
"""Time limit of a run: the tick of callbacks waits in the same process."""


@shared_task(name="controlplane.ticks.hooks")
def hooks(_woken: bool = False) -> None:
    """Run the tick; beat and wakes send this task."""
    wakes.take_wake(NAME)
    run()


def run() -> int:
    """Make due calls within the time limit; return how many."""
    now = clock.now()
    if not is_any_call_due(now):
        return 0
    called, is_more = call_due(now=now, seconds=SECONDS)
    if is_more:
        wakes.wake_hooks()
    return called
