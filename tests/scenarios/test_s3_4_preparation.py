"""S3.4: pulls and creations are tracked, tried again here, then elsewhere, or not at all.

Source: Backend.AI: the coordinator "receives and processes kernel-related events (image pulling
start/complete/fail, kernel creation ...)"; "Up to 3 retries in same stage"; "After 3 failures:
Return session to PENDING state for rescheduling (attempt assignment to different agent)"; sessions
that stayed in PULLING or PREPARING "longer than the configured timeout" are found and handled;
"cancels sessions for permanent errors".
"""

from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from controlplane.commands.jobs.cancel import cancel_job
from controlplane.models import Attempt, Job, Transition
from tests.conformance.cable import Cable
from tests.conformance.distribution import Distribution, serving
from tests.harness.web import Answer, Request, Web
from tests.scenarios.cells import LiveStage, RealCell

CREATE = b"/containers/create"
LOOPBACK: dict[str, Any] = {"allowed_networks": (ip_network("127.0.0.0/8"),)}
NOISE, RATE = 3 << 20, 1 << 20  # bytes of an image, and how many of them arrive in a second


@pytest.fixture
def registry(image: None, tmp_path: Path) -> Iterator[Distribution]:
    """A registry of images that is up."""
    with serving(tmp_path / "registry") as registry:
        yield registry


@pytest.fixture
def road(registry: Distribution) -> Iterator[Cable]:
    """A slow road to the registry."""
    cable = Cable(("127.0.0.1", 0), ("127.0.0.1", registry.port))
    cable.throttle(RATE)
    yield cable
    cable.close()


@pytest.fixture
def web() -> Iterator[Web]:
    """Where inputs come from."""
    with Web() as web:
        yield web


@pytest.fixture
def cell_settings() -> dict[str, Any]:
    """Cells may fetch from this machine."""
    return LOOPBACK


def phases(attempt: Attempt) -> list[str]:
    """The phases of its build in the history, in order."""
    found = Transition.objects.filter(attempt_uid=attempt.uid, to_state=2, reason="building")
    return list(found.order_by("id").values_list("message", flat=True))


def tries(attempt: Attempt) -> list[str]:
    """The tries of a stage that failed and that another followed, by their first words."""
    found = Transition.objects.filter(attempt_uid=attempt.uid, reason="try_failed")
    texts = found.order_by("id").values_list("message", flat=True)
    return [text.partition(":")[0] for text in texts]


# --------------------------------------------------------------------------------- tracking


@pytest.mark.engine
def test_the_history_records_the_pull_and_the_creation(
    live: LiveStage, docker_cell: RealCell, registry: Distribution
) -> None:
    job = live.run(docker_cell, "true", image=registry.push())
    live.until_state(job, "SUCCEEDED")
    assert phases(live.last(job)) == ["preparing", "pulling", "preparing", "creating"]
    again = live.run(docker_cell, "true", image=job.spec["image"])
    live.until_state(again, "SUCCEEDED")
    assert phases(live.last(again)) == ["preparing", "creating"]


@pytest.mark.engine
def test_pull_progress_is_shown_and_a_pull_can_be_cancelled(
    registry: Distribution, road: Cable, live: LiveStage, docker_cell: RealCell
) -> None:
    image = registry.seen_through(road.port, registry.push(noise=NOISE))
    job = live.run(docker_cell, "true", image=image)
    live.until(lambda: live.attempts(job) and 0 < (live.last(job).progress or 0) < 100)
    assert (live.states(job), live.last(job).phase) == (["BUILDING"], "pulling")
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=live.now())
    live.until_settled(job)
    assert (live.states(job), live.last(job).started_at) == (["KILLED"], None)
    road.throttle(float("inf"))  # the engine goes on with what it has begun


# ------------------------------------------------------------------------- tried here, elsewhere


def test_failed_input_download_is_retried_in_its_stage(
    live: LiveStage, cell: RealCell, web: Web
) -> None:
    failures = iter([Answer(503), Answer(503)])

    def answer(request: Request) -> Answer:
        return next(failures, Answer(200, b"words"))

    web.route = answer
    inputs = [{"path": "/in/text", "url": f"{web.url}/text"}]
    job = live.run(cell, f"cat {cell.root}/in/text", inputs=inputs)
    live.until_settled(job)
    assert live.states(job) == ["SUCCEEDED"]
    assert tries(live.last(job)) == ["try 1 of 3 failed", "try 2 of 3 failed"]
    assert (len(live.attempts(job)), live.counters(job)) == (1, (0, 0, 0))


def test_input_failing_three_times_moves_the_task_to_another_cell(
    live: LiveStage, cell: RealCell, web: Web
) -> None:
    live.open_cell(cell.config.driver, "cell-2", **LOOPBACK)
    failures = iter([Answer(503)] * 3)
    web.route = lambda request: next(failures, Answer(200, b"words"))
    job = live.run(cell, "true", inputs=[{"path": "/in/text", "url": f"{web.url}/text"}])
    live.until_settled(job)
    first, second = live.attempts(job)
    assert live.states(job) == ["SUCCEEDED"]
    assert (first.failure_kind, live.counters(job)) == ("system", (0, 0, 1))
    assert first.cell_id != second.cell_id
    assert "tried 3 times" in first.message


@pytest.mark.engine
def test_pull_failing_three_times_moves_the_task_to_another_cell(
    live: LiveStage, docker_cell: RealCell, registry: Distribution
) -> None:
    image = registry.push()
    live.open_cell("docker", "cell-2")
    registry.stop()
    job = live.run(docker_cell, "true", image=image)
    live.until(lambda: len(live.attempts(job)) == 2)
    registry.start()
    live.until_state(job, "SUCCEEDED")
    first, second = live.attempts(job)[:2]
    assert tries(first) == ["try 1 of 3 failed", "try 2 of 3 failed"]
    assert first.cell_id != second.cell_id
    assert live.counters(job)[0] == 0


# ------------------------------------------------------------------------------- what hangs


def found_stuck(live: LiveStage, job: Job) -> Attempt:
    """The first attempt of the job, once its build was given up."""
    live.until(lambda: live.attempts(job) and live.attempts(job)[0].finished_at, seconds=20)
    first = live.attempts(job)[0]
    assert (first.reason, first.failure_kind) == ("build_timeout", "system")
    return first


@pytest.mark.engine
def test_hanging_creation_is_ended_by_the_create_timeout_of_the_pool(
    line: Cable, live: LiveStage, docker_cell: RealCell
) -> None:
    live.policy(create_timeout_seconds=1)
    line.hold(CREATE)
    job = live.run(docker_cell, "echo once")
    assert phases(found_stuck(live, job)) == ["preparing", "creating"]
    live.policy(create_timeout_seconds=600)
    line.hold(None)
    live.until_state(job, "SUCCEEDED")
    live.until(lambda: all(one.released_at for one in live.attempts(job)))
    first, *_, last = live.attempts(job)
    assert first.started_at is None
    assert live.until(lambda: live.log(last)) == "once\n"
    assert live.counters(job)[:2] == (0, 0)


@pytest.mark.engine
def test_hanging_pull_is_ended_by_the_pull_timeout_of_the_pool(
    registry: Distribution, road: Cable, live: LiveStage, docker_cell: RealCell
) -> None:
    live.policy(pull_timeout_seconds=1)
    road.hold(b"GET ")
    image = registry.seen_through(road.port, registry.push())
    job = live.run(docker_cell, "true", image=image)
    assert phases(found_stuck(live, job)) == ["preparing", "pulling"]
    live.policy(pull_timeout_seconds=600)
    road.hold(None)
    live.until_state(job, "SUCCEEDED")
    assert live.counters(job)[:2] == (0, 0)


# ------------------------------------------------------------------------------- for good


def test_missing_program_is_not_retried(live: LiveStage, cell: RealCell) -> None:
    job = live.run(cell, "", command=["no-such-program"], retries={"failure": 5, "system": 5})
    live.until_settled(job)
    assert (live.states(job), len(live.attempts(job))) == (["FAILED"], 1)
    assert "no-such-program" in live.document(job)["failure_reason"]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"image": "cellrun/demo:no-such-tag", "pull_policy": "never"}, "is not on the engine"),
        ({"user": "nobody-here"}, "unable to find user nobody-here"),
    ],
)
def test_missing_image_or_user_is_not_retried(
    live: LiveStage, docker_cell: RealCell, wrong: dict[str, str], words: str
) -> None:
    job = live.run(docker_cell, "true", retries={"failure": 5, "system": 5}, **wrong)
    live.until_settled(job)
    assert (live.states(job), len(live.attempts(job))) == (["FAILED"], 1)
    assert words in live.document(job)["failure_reason"]
