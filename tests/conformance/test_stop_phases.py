"""A stop arrives at every step of an attempt: it ends once and for good, and nothing is left."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from controlplane.contract.messages.orders import Input
from tests.conformance.kit import DockerKit, until
from tests.harness.web import Web
from workers.attempt.events import BuildingEvent, EndedEvent, StartedEvent
from workers.attempt.outcome import STOPPED
from workers.attempt.pipeline import START

pytestmark = pytest.mark.engine

STEPS = f"{os.sep}workers{os.sep}attempt{os.sep}"
BUILDING = tuple(step.__name__ for step in START)
MOMENTS = (
    *(f"{step}:{moment}" for step in BUILDING for moment in ("call", "return")),
    "wait_for_end:call",
)
TOO_LATE = ("wait_for_end:return", "collect_output:call")


@contextmanager
def at_the_moment(moment: str, action: Callable[[], None]) -> Iterator[None]:
    """Do `action` once, when that function of the pipeline begins or ends, in threads made now."""
    name, what = moment.split(":")
    done: list[str] = []

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == what and code.co_name == name and STEPS in code.co_filename and not done:
            done.append(moment)
            action()

    threading.setprofile(trace)
    try:
        yield
        assert done
    finally:
        threading.setprofile(None)


def stopped_at(kit: DockerKit, web: Web, moment: str, *command: str) -> EndedEvent:
    """Return the end of an attempt that is stopped at that moment."""
    web.files["/text"] = b"x"
    inputs = (Input("/in/text", f"{web.url}/text"),)
    launch = kit.launch(*command, inputs=inputs, result_file="/out/result")

    def stop() -> None:
        kit.driver.stop(launch.uid, grace_seconds=0.2, force=False)

    with at_the_moment(moment, stop):
        kit.begin_again()
        kit.driver.start(launch)
        ended = kit.events.ended(launch.uid)
    kinds = [type(e) for e in kit.events.of(launch.uid) if not isinstance(e, BuildingEvent)]
    assert kinds in ([EndedEvent], [StartedEvent, EndedEvent])
    assert kit.starts(launch.uid) == (StartedEvent in kinds)
    assert not any(found.running for found in kit.driver.find())
    if ended.never_created:
        assert not list(kit.driver.find())
    kit.driver.remove(launch.uid)
    until(lambda: not list(kit.driver.find()) and not list(kit.home.glob("work/*")))
    return ended


@pytest.mark.parametrize("moment", MOMENTS)
def test_stop_at_any_step_ends_the_attempt_and_leaves_nothing(
    docker_kit: DockerKit, web: Web, moment: str
) -> None:
    ended = stopped_at(docker_kit, web, moment, "sleep", "300")
    assert (ended.failure_kind, ended.reason) == (None, STOPPED)
    created = MOMENTS.index(moment) >= MOMENTS.index("create_container:call") + 1
    assert ended.never_created == (not created)


@pytest.mark.parametrize("moment", TOO_LATE)
def test_stop_that_comes_too_late_changes_nothing(
    docker_kit: DockerKit, web: Web, moment: str
) -> None:
    ended = stopped_at(docker_kit, web, moment, *docker_kit.exits(3))
    assert (ended.exit_code, ended.reason) == (3, "exit")
