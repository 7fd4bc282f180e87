"""Hooks that are slow, fail or return nonsense: each harms its own job and holds up no other."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event as Signal
from typing import Any

import pytest

from controlplane import clock, plugins
from controlplane.commands.attempts import hook_calls, hook_ends
from controlplane.commands.hooks import bounded_calls, registry
from controlplane.commands.hooks.bounded_calls import BoundedCalls
from controlplane.commands.jobs.rerun import retry_job
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict
from controlplane.domain.hooks.interface import EndOfJob
from controlplane.domain.roles import Role
from controlplane.models import Alert, Cell, HookCall, Job, Pool, Quota, Transition
from controlplane.ticks import hooks
from tests.integration.api.conftest import make_caller
from tests.integration.loop.conftest import FakeCell, Loop
from tests.integration.loop.hook_probe import Probe, installed, raising

SHORT = {"name": "a", "image": "busybox", "kind": "probe"}
SMALL = {"cpu": 0.05, "memory": "16Mi"}


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    # Calls that another test left hanging do not count here.
    monkeypatch.setattr(registry, "_calls", BoundedCalls())
    with installed(tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
def second(probe: Probe) -> Probe:
    """Another kind of another package."""
    found: Probe = plugins.get(plugins.Kind.HOOK, "second")
    return found


@pytest.fixture
def taking(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Callable[[], None]]:
    """Return what makes a call take so many seconds, of the clock that times calls."""
    passed = [0.0]
    for module in (hook_calls, hook_ends):
        monkeypatch.setattr(module, "monotonic", lambda: passed[0])

    def take(seconds: float) -> Callable[[], None]:
        def pass_time() -> None:
            passed[0] += seconds

        return pass_time

    return take


def end_all(loop: Loop, cell: FakeCell, *jobs: Job) -> None:
    """Report that the attempts of the jobs have succeeded, all at once and in this order."""
    ended = [attempt for job in jobs for attempt in loop.attempts(job)]
    cell.report(*(AttemptReport(str(a.uid), 0, S.SUCCEEDED, exit_code=0, gone=True) for a in ended))
    loop.converge()


# --------------------------------------------------------------------------------- time


@pytest.mark.usefixtures("many_slots")
def test_slow_on_end_hook_does_not_delay_ends_of_another_kind(
    loop: Loop, probe: Probe, second: Probe, taking: Callable[[float], Callable[[], None]]
) -> None:
    cell, slowly = loop.cell(), taking(0.9)
    probe.acts["on_end"] = lambda end: slowly() or end.event
    slow = [loop.submit(kind="probe", resources=SMALL) for _ in range(8)]
    other = loop.submit(kind="second", resources=SMALL)
    loop.place()
    end_all(loop, cell, *slow, other)
    assert loop.state(other) == "SUCCEEDED"
    assert [loop.state(job) for job in slow] == ["SUCCEEDED"] * 2 + ["FAILED"] * 6
    slow[-1].refresh_from_db()
    assert slow[-1].failure_reason == (
        "the hook probe failed in on_end: its calls for one batch of ends took longer than 1.5 s"
    )


@pytest.mark.usefixtures("many_slots")
def test_slow_on_end_calls_of_one_job_do_not_affect_another_job(
    loop: Loop, probe: Probe, taking: Callable[[float], Callable[[], None]]
) -> None:
    cell, slowly = loop.cell(), taking(0.9)
    slow = loop.submit(kind="probe", resources=SMALL, replicas=8)
    quick = loop.submit(kind="probe", resources=SMALL)
    probe.acts["on_end"] = lambda end: (slowly() if end.job_id == slow.pk else None) or end.event
    loop.place()
    end_all(loop, cell, slow, quick)
    assert (loop.state(slow), loop.state(quick)) == ("FAILED", "SUCCEEDED")


@pytest.mark.usefixtures("many_slots")
def test_slow_kind_gets_at_most_half_of_a_hook_tick(
    loop: Loop, probe: Probe, second: Probe, taking: Callable[[float], Callable[[], None]]
) -> None:
    loop.cell()
    slowly = taking(0.9)
    probe.acts["on_placed"] = lambda event: slowly()
    for kind in ("probe", "second"):
        loop.submit(kind=kind, resources=SMALL, replicas=10)
    loop.place()
    hooks.run()
    assert len(second.calls_of("on_placed")) == 10
    # A half of the five seconds of a tick; the others wait for the next one.
    assert len(probe.calls_of("on_placed")) == 3
    assert HookCall.objects.filter(kind="probe", claimed_until=None).count() == 7


@pytest.mark.parametrize("method", ["prepare", "on_placed", "on_end"])
def test_endlessly_computing_hook_ends_only_its_own_job(
    loop: Loop, probe: Probe, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(bounded_calls, "SECONDS", 0.2)
    stop = Signal()

    def spin(argument: Any) -> Any:
        while not stop.is_set():
            pass

    cell, ann = loop.cell(), make_caller("ann", Role.SUBMITTER)
    probe.acts[method] = spin
    answer = ann.post("/jobs", {**SHORT, "resources": SMALL})
    other = loop.submit(resources=SMALL)
    loop.place()
    hooks.run()
    if method == "prepare":
        assert answer.faults["kind"].endswith("it took longer than 0.2 s")
        assert loop.states(other) == ["ASSIGNED"]
        stop.set()
        return
    own = Job.objects.get(pk=answer.json["id"])
    end_all(loop, cell, own, other)
    stop.set()
    own.refresh_from_db()
    assert (loop.state(own), loop.state(other)) == ("FAILED", "SUCCEEDED")
    assert own.failure_reason == f"the hook probe failed in {method}: it took longer than 0.2 s"


# ------------------------------------------------------------------------------ nonsense


@pytest.mark.parametrize("leave", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("method", ["prepare", "on_placed", "on_started", "on_end"])
def test_hook_that_raises_an_exit_ends_only_its_own_job(
    loop: Loop, probe: Probe, method: str, leave: BaseException
) -> None:
    def act(argument: Any) -> Any:
        raise leave

    cell, ann = loop.cell(), make_caller("ann", Role.SUBMITTER)
    probe.acts[method] = act
    answer = ann.post("/jobs", {**SHORT, "resources": SMALL})
    other = loop.submit(resources=SMALL)
    loop.place()
    if method == "prepare":
        assert type(leave).__name__ in answer.faults["kind"]
        assert loop.states(other) == ["ASSIGNED"]
        return
    own = Job.objects.get(pk=answer.json["id"])
    for attempt in loop.attempts(own):
        cell.report(
            AttemptReport(str(attempt.uid), 0, S.RUNNING, started_at=clock.now().timestamp())
        )
    hooks.run()
    end_all(loop, cell, own, other)
    own.refresh_from_db()
    assert (loop.state(own), loop.state(other)) == ("FAILED", "SUCCEEDED")
    assert f"the hook probe failed in {method}" in own.failure_reason
    assert type(leave).__name__ in own.failure_reason


def test_failing_hook_attributes_do_not_block_placement(loop: Loop, probe: Probe) -> None:
    cell = loop.cell()
    odd, other = loop.submit(kind="odd"), loop.submit()
    loop.place()
    assert [loop.states(job) for job in (odd, other)] == [["ASSIGNED"]] * 2
    end_all(loop, cell, odd, other)
    assert [loop.state(job) for job in (odd, other)] == ["SUCCEEDED"] * 2
    assert not Alert.objects.exists()


def test_hook_that_ends_a_job_without_text_leaves_a_default_reason(
    loop: Loop, probe: Probe
) -> None:
    loop.cell()
    probe.acts["on_placed"] = lambda event: EndOfJob("")
    job = loop.submit(kind="probe")
    loop.place()
    hooks.run()
    loop.converge()
    job.refresh_from_db()
    assert (loop.state(job), job.failure_reason) == ("FAILED", "the hook of its kind ended its job")


def test_hook_failing_after_the_job_end_does_not_change_the_job(loop: Loop, probe: Probe) -> None:
    cell = loop.cell()
    probe.acts["on_placed"] = raising
    job = loop.submit(kind="probe")
    loop.place()
    end_all(loop, cell, job)
    before = list(Transition.objects.filter(job_id=job.pk).values())
    hooks.run()
    loop.converge()
    job.refresh_from_db()
    assert (loop.state(job), job.failure_reason, job.ending_reason) == ("SUCCEEDED", "", "")
    assert list(Transition.objects.filter(job_id=job.pk).values()) == before
    assert Alert.objects.filter(kind="plugin_failed").count() == 1


# ------------------------------------------------- submissions of several jobs, dry run, rerun


def test_failing_hook_in_a_batch_is_named_and_refuses_the_batch(loop: Loop, probe: Probe) -> None:
    probe.acts["prepare"] = lambda terms: raising(terms) if terms.origin.job == "b" else terms
    ann = make_caller("ann", Role.SUBMITTER)
    bodies = [{**SHORT, "name": "a"}, {**SHORT, "name": "b"}, {**SHORT, "name": "c"}]
    answer = ann.post("/jobs:batch", bodies)
    assert answer.status == 422
    [(field, text)] = answer.faults.items()
    assert (field, "RuntimeError('no luck')" in text) == ("[1].kind", True)
    assert not Job.objects.exists()


def test_dry_run_applies_and_validates_what_the_kind_sets(loop: Loop, probe: Probe) -> None:
    loop.cell("near")
    loop.cell("far")
    Cell.objects.filter(name="far").update(labels={"zone": "a"})
    ann = make_caller("ann", Role.SUBMITTER)
    zone = {"key": "zone", "op": "eq", "values": ["a"]}
    probe.acts["prepare"] = lambda terms: replace(terms, constraints=(zone,))
    answer = ann.post("/jobs:dry-run", {**SHORT, "replicas": 2, "resources": SMALL})
    assert [(group["cells"]) for group in answer.json["groups"]] == [{"far": 2}]
    for act, field in ((raising, "kind"), (lambda t: replace(t, ports="http"), "ports")):
        probe.acts["prepare"] = act
        answer = ann.post("/jobs:dry-run", SHORT)
        assert (answer.status, list(answer.faults)) == (422, [field])
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"resources": {"cpu": 1000}}, "groups[0].resources.cpu: "),
        ({"resources": {"cpu": 3}}, "quota of user owner"),
        ({"resources": {"cpu": 1, "licence": 3}}, "tokens licence"),
        ({"mounts": ({"source": "/data", "target": "/d"},)}, "allows no mount of /data"),
        ({"env": {"A B": ""}}, "groups[0].env.A B"),
    ],
)
def test_invalid_terms_set_by_a_kind_refuse_a_retry(
    loop: Loop, probe: Probe, changes: dict[str, Any], words: str
) -> None:
    cell = loop.cell()
    Pool.objects.update(tokens={"licence": 2})
    Quota.objects.create(user=loop.owner, resources={"cpu_millis": 2000})
    job = loop.submit(kind="probe")
    loop.place()
    cell.end(loop.attempts(job)[0], S.FAILED, exit_code=1)
    probe.acts["prepare"] = lambda terms: replace(terms, **changes)
    with pytest.raises(Conflict) as refused:
        retry_job(job_id=job.pk, guid=None, actor="owner", now=clock.now())
    assert words in str(refused.value)
    assert "(set by kind probe)" in str(refused.value)
    assert Job.objects.count() == 1
