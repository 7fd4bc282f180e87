"""Schedule the ticks: interval and queue of each, and the scheduler that sends them."""

from datetime import UTC, datetime
from typing import Any

from celery.beat import PersistentScheduler

from controlplane.config.env import ControlPlaneSettings

CLOCK_DIFFERENCE_SECONDS = 60

# Wakes start these ticks at once; the interval covers lost wakes.
WOKEN_INTERVAL_SECONDS = 10.0
# The ticks that no wake starts.
POLL_INTERVAL_SECONDS = 5.0


class Scheduler(PersistentScheduler):
    """Scheduler that sleeps until an entry is due.

    Celery's own wakes 10 ms before and polls until then, which takes three quarters of beat's CPU.
    """

    def adjust(self, n: float | None, drift: float = 0.0) -> float | None:
        """Return the seconds to sleep, by default without Celery's lead."""
        adjusted: float | None = super().adjust(n, drift)
        return adjusted


def build_schedule(settings: ControlPlaneSettings) -> dict[str, dict[str, Any]]:
    """Return Celery beat's schedule.

    A message expires once newer ones replace it, so that a worker does not accumulate a backlog.
    Expiry compares the clocks of two machines, so it allows for a difference.
    """
    ticks = {
        "placement": settings.placement_interval_seconds,
        "convergence": settings.convergence_interval_seconds,
        "callbacks": WOKEN_INTERVAL_SECONDS,
        "hooks": WOKEN_INTERVAL_SECONDS,
        "notifications": POLL_INTERVAL_SECONDS,
    }
    if settings.tracing:
        ticks["tracing"] = POLL_INTERVAL_SECONDS
    queues = dict.fromkeys(("hooks", "notifications", "tracing"), "callbacks")
    return {
        name: {
            "task": f"controlplane.ticks.{name}",
            "schedule": interval,
            # In the past, so that the first run is due at once, not after one interval.
            "last_run_at": datetime(2000, 1, 1, tzinfo=UTC),
            "options": {
                "queue": queues.get(name, name),
                "expires": interval + CLOCK_DIFFERENCE_SECONDS,
                "ignore_result": True,
            },
        }
        for name, interval in ticks.items()
    }
