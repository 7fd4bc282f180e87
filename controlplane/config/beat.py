"""What runs by the clock: each tick, how often, on which queue."""

from typing import Any

from controlplane.config.env import Settings


def build_schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return Celery beat's schedule.

    A message that waited longer than its interval is worthless, since the next one is there:
    it expires, so that a worker that was away does not find a heap of them.
    """
    ticks = {
        "placement": settings.placement_interval_seconds,
        "convergence": settings.convergence_interval_seconds,
    }
    return {
        name: {
            "task": f"controlplane.ticks.{name}",
            "schedule": interval,
            "options": {"queue": name, "expires": interval, "ignore_result": True},
        }
        for name, interval in ticks.items()
    }
