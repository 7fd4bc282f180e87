"""Placements that wait for a concurrency key create attempts at the time after the wait."""

from datetime import timedelta
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.placement import limits
from controlplane.models import Attempt
from tests.integration.loop.conftest import Loop
from tests.integration.loop.test_concurrency_keys import keyed

pytestmark = pytest.mark.usefixtures("many_slots")


def test_attempt_is_not_earlier_than_those_made_while_placement_waited_for_its_key(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt of another pool, whose transaction had the key, would be later than this one."""
    loop.cell()
    job = keyed(loop, None, starts={"count": 1, "per_seconds": 60})
    at = clock.now()
    monkeypatch.setattr(clock, "now", lambda: at)
    lock_keys = limits.lock_keys

    def wait_for_keys(*args: Any, **options: Any) -> None:
        nonlocal at
        lock_keys(*args, **options)
        at += timedelta(seconds=5)

    monkeypatch.setattr(limits, "lock_keys", wait_for_keys)
    loop.place()
    assert [attempt.created_at for attempt in Attempt.objects.filter(job=job)] == [at]
