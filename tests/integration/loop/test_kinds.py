"""Kinds of jobs through the loop: services that never end, sessions that do, hooks of others."""

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from controlplane import clock, plugins
from controlplane.commands.jobs.rerun import retry_job
from controlplane.contract.messages.health import HealthCheck
from controlplane.contract.messages.orders import GroupSpec, Orders
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import FailureKind, Phase
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict
from controlplane.domain.jobs.submission import JobsRefused
from controlplane.models import Attempt, Job, Task, Transition
from controlplane.queries.views.attempts import get_attempt
from tests.integration.loop.conftest import FakeCell, Loop

CHECK = {"http": {"port": "http", "path": "/up"}, "start_period_seconds": 30}
SERVICE: dict[str, Any] = {"kind": "inference", "ports": ["http"], "health_check": CHECK}


def sent_spec(cell: FakeCell) -> GroupSpec:
    """The definition in the orders that left last."""
    return [order for order in cell.orders() if isinstance(order, Orders)][-1].specs[0]


def placed(loop: Loop, cell: FakeCell, job: Job) -> Attempt:
    Task.objects.filter(job=job).update(not_before=None)
    loop.place()
    attempt = loop.attempts(job)[-1]
    assert str(attempt.uid) in cell.run_orders()
    return attempt


def running(cell: FakeCell, attempt: Attempt, **facts: Any) -> None:
    at = clock.now().timestamp()
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING, started_at=at, **facts))


def last_reason(job: Job) -> str:
    newest = Transition.objects.filter(job_id=job.pk, task_id__isnull=False).order_by("id").last()
    assert newest is not None
    return str(newest.reason)


def test_service_is_restarted_after_any_end_without_charge(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(**SERVICE)
    ends: list[tuple[S, dict[str, Any], str]] = [
        (S.SUCCEEDED, {"exit_code": 0}, "ended_early"),
        (S.FAILED, {"exit_code": 1, "reason": "exit"}, "exit_status"),
        (S.FAILED, {"exit_code": 137, "failure_kind": FailureKind.USER, "reason": "oom"}, "out_of"),
        (
            S.FAILED,
            {"exit_code": 137, "failure_kind": FailureKind.OUTSIDE, "reason": "killed_outside"},
            "stopped_outside",
        ),
        (
            S.FAILED,
            {"exit_code": 143, "failure_kind": FailureKind.USER, "reason": "health_check"},
            "health_check_failed",
        ),
    ]
    for number, (state, facts, reason) in enumerate(ends, 1):
        attempt = placed(loop, cell, job)
        assert attempt.number == number
        if number % 2:  # of every other one the report that it is RUNNING is lost
            running(cell, attempt)
        cell.end(attempt, state, started_at=clock.now().timestamp(), **facts)
        assert loop.states(job) == ["PENDING"]
        assert last_reason(job).startswith(reason)
    task = loop.tasks(job)[0]
    counts = (task.failure_count, task.preemption_count, task.system_failure_count)
    assert counts == (0, 0, 0)
    assert [S(item.state) for item in loop.attempts(job)] == [S.FAILED] * 5
    assert {item.charged for item in loop.attempts(job)} == {""}
    assert loop.state(job) == "RUNNING"


def test_cell_receives_the_health_check_and_ports(loop: Loop) -> None:
    cell = loop.cell()
    placed(loop, cell, loop.submit(**SERVICE))
    spec = sent_spec(cell)
    assert spec.ports == ("http",)
    assert spec.health_check == HealthCheck(port="http", path="/up", start_period_seconds=30.0)


def test_service_that_never_became_healthy_fails_like_other_tasks(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(**SERVICE)
    attempt = placed(loop, cell, job)
    cell.report(AttemptReport(str(attempt.uid), 0, S.BUILDING, phase=Phase.CHECKING))
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    assert (loop.state(job), loop.states(job)) == ("FAILED", ["FAILED"])
    assert last_reason(job) == "ended_early"
    assert loop.tasks(job)[0].failure_count == 1


def test_start_period_extends_the_build_timeout(loop: Loop) -> None:
    cell = loop.cell()
    jobs = [loop.submit(**SERVICE, name="slow"), loop.submit(name="stuck")]
    for job in jobs:
        attempt = placed(loop, cell, job)
        phase = Phase.CHECKING if job.name == "slow" else Phase.CREATING
        cell.report(AttemptReport(str(attempt.uid), 0, S.BUILDING, phase=phase))
    limit = 300 + 15  # the pool's create timeout, and half of the start period
    for attempt in Attempt.objects.all():
        earlier = attempt.state_since - timedelta(seconds=limit)
        Attempt.objects.filter(pk=attempt.pk).update(state_since=earlier)
    loop.converge()
    assert [loop.states(job) for job in jobs] == [["BUILDING"], ["PENDING"]]
    Attempt.objects.filter(job=jobs[0]).update(state_since=clock.now() - timedelta(seconds=331))
    loop.converge()
    assert loop.states(jobs[0]) == ["PENDING"]


def test_build_alternating_between_phases_is_stuck(loop: Loop) -> None:
    cell, job = loop.cell(), loop.submit(**SERVICE)
    attempt = placed(loop, cell, job)
    in_all = timedelta(seconds=1800 + 3 * 300 + 30)  # its pool's timeouts, its start period
    for phase in (Phase.PULLING, Phase.CREATING, Phase.PULLING):
        cell.report(AttemptReport(str(attempt.uid), 0, S.BUILDING, phase=phase))
    Attempt.objects.update(start_before=clock.now() - in_all + timedelta(seconds=60))
    loop.converge()
    assert loop.states(job) == ["BUILDING"]
    Attempt.objects.update(start_before=clock.now() - in_all)
    loop.converge()
    assert loop.states(job) == ["PENDING"]


def test_checking_without_a_health_check_has_the_create_timeout(loop: Loop) -> None:
    cell, job = loop.cell(), loop.submit()
    attempt = placed(loop, cell, job)
    cell.report(AttemptReport(str(attempt.uid), 0, S.BUILDING, phase=Phase.CHECKING))
    Attempt.objects.update(state_since=clock.now() - timedelta(seconds=299))
    loop.converge()
    assert loop.states(job) == ["BUILDING"]
    Attempt.objects.update(state_since=clock.now() - timedelta(seconds=301))
    loop.converge()
    assert loop.states(job) == ["PENDING"]


@pytest.mark.parametrize("reason", ["idle_timeout", "lifetime_over"])
def test_session_ended_by_a_limit_is_killed_with_its_reason(loop: Loop, reason: str) -> None:
    cell = loop.cell()
    limits = {"idle_timeout_seconds": 60, "lifetime_seconds": 600}
    job = loop.submit(kind="interactive", **limits, retries={"failure": 5})
    attempt = placed(loop, cell, job)
    spec = sent_spec(cell)
    assert (spec.idle_timeout_seconds, spec.lifetime_seconds) == (60.0, 600.0)
    running(cell, attempt)
    cell.end(attempt, S.KILLED, exit_code=143, reason=reason)
    assert (loop.state(job), loop.states(job)) == ("KILLED", ["KILLED"])
    assert last_reason(job) == reason


def test_lifetime_is_enforced_by_the_control_plane(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(kind="interactive", lifetime_seconds=5)
    attempt = placed(loop, cell, job)
    running(cell, attempt)
    Attempt.objects.update(started_at=clock.now() - timedelta(seconds=36))
    loop.converge()
    assert loop.states(job) == ["KILLED"]
    assert cell.stop_orders() == [str(attempt.uid)]


def test_addresses_are_shown_with_the_attempt(loop: Loop) -> None:
    cell = loop.cell()
    attempt = placed(loop, cell, loop.submit(ports=["http"]))
    assert get_attempt(attempt.uid)["addresses"] == {}
    running(cell, attempt, addresses={"http": "10.0.0.5:49153"})
    assert get_attempt(attempt.uid)["addresses"] == {"http": "10.0.0.5:49153"}
    assert get_attempt(attempt.uid)["usage"] is None
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    assert get_attempt(attempt.uid)["addresses"] == {"http": "10.0.0.5:49153"}


# ----------------------------------------------------------------------------- refusals


def refused(loop: Loop, **body: Any) -> dict[str, str]:
    with pytest.raises(JobsRefused) as caught:
        loop.submit(**body)
    assert not Job.objects.exists()
    return {fault.field: fault.detail for _, fault in caught.value.faults}


def test_unknown_kind_is_refused_with_the_installed_kinds(loop: Loop) -> None:
    [(field, text)] = refused(loop, kind="daemon").items()
    assert field == "kind"
    assert text == "there is no kind daemon; installed are batch, inference, interactive"


def test_field_not_valid_for_a_kind_is_refused(loop: Loop) -> None:
    groups = [{"name": "a", "image": "x"}, {"name": "b", "image": "x", "lifetime_seconds": 60}]
    assert refused(loop, groups=groups) == {
        "groups[1].lifetime_seconds": "is only valid for kind interactive"
    }


# ----------------------------------------------------------------------------- of others

HOOK = """
    from controlplane.domain.hooks.interface import Refusal
    from controlplane.domain.state.transitions import Event


    class Lenient:
        def prepare(self, terms):
            if terms.timeout_seconds is None:
                raise Refusal("timeout_seconds", "is required for kind lenient")
            return terms

        def on_end(self, end):
            if end.exit_code == 13:
                raise RuntimeError("no luck")
            return Event.EXITED_ZERO if end.exit_code == 3 else end.event
"""


@pytest.fixture
def lenient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with a hook is installed, as pip would leave it."""
    (tmp_path / "lenient_hook.py").write_text(dedent(HOOK))
    info = tmp_path / "lenient_hook-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lenient-hook\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[cellrun.hooks]\nlenient = lenient_hook:Lenient\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.forget()
    yield
    monkeypatch.undo()
    plugins.forget()
    sys.modules.pop("lenient_hook", None)


def test_hook_of_another_package_validates_terms_and_decides_ends(
    loop: Loop, lenient: None
) -> None:
    assert refused(loop, kind="lenient") == {"timeout_seconds": "is required for kind lenient"}
    cell = loop.cell()
    states = []
    for code in (3, 4, 13):
        job = loop.submit(kind="lenient", timeout_seconds=60)
        attempt = placed(loop, cell, job)
        running(cell, attempt)
        cell.end(attempt, S.FAILED, exit_code=code, reason="exit")
        states.append(loop.state(job))
    assert states == ["SUCCEEDED", "FAILED", "FAILED"]


def test_jobs_of_an_uninstalled_kind_end_as_batch(
    loop: Loop, lenient: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cell = loop.cell()
    job = loop.submit(kind="lenient", timeout_seconds=60)
    attempt = placed(loop, cell, job)
    (tmp_path / "lenient_hook-1.0.dist-info" / "entry_points.txt").unlink()
    plugins.forget()
    cell.end(attempt, S.FAILED, exit_code=3, reason="exit")
    assert loop.state(job) == "FAILED"
    with pytest.raises(Conflict, match="there is no kind lenient"):
        retry_job(job_id=job.pk, guid=None, actor="owner", now=clock.now())
