"""A cascade that is more than one tick works off goes on at once, not at the clock's next tick."""

import pytest

from controlplane import clock
from controlplane.commands.convergence import jobs as cascades
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.queries.integrity.invariants import check_all
from controlplane.ticks import convergence
from tests.integration.loop.conftest import Loop

PAGES_PER_TICK, CHILDREN = 4, 11


def take_wake(loop: Loop) -> bool:
    """Return whether convergence was woken; take the waiting wakes as one."""
    before = len(loop.wire.sent)
    loop.wire.drop("convergence")
    return len(loop.wire.sent) < before


def test_wide_cascade_is_finished_by_ticks_that_wake_the_next(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascades, "PAGES_PER_TICK", PAGES_PER_TICK)
    parent = loop.submit()
    children = [loop.submit(parent=parent.pk) for _ in range(CHILDREN)]
    cancel_job(job_id=parent.pk, reason="", force=False, actor="me", now=clock.now())
    ended = []
    while take_wake(loop):
        ended.append(convergence.run(woken=True).get("ended", 0))
    # Of each a page; that no page was left is found out for nothing.
    assert ended[:3] == [4, 4, 3]
    assert {loop.state(job) for job in (parent, *children)} == {"KILLED"}
    assert check_all() == []
