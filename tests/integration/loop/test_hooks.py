"""Hooks of other packages: what they change is judged and shown, and their faults are their own."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event as Signal
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.commands.attempts import hook_calls
from controlplane.commands.hooks import bounded_calls, registry
from controlplane.commands.hooks.bounded_calls import BoundedCalls
from controlplane.commands.jobs.rerun import retry_job
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict
from controlplane.domain.hooks.interface import AttemptEnd, EndOfJob, GroupTerms
from controlplane.domain.roles import Role
from controlplane.domain.state.transitions import Event
from controlplane.models import Alert, Cell, HookCall, Job, Pool, Transition
from controlplane.queries.attempts.group_specs import load_group_specs
from controlplane.queries.views.jobs import get_job
from controlplane.ticks import hooks
from tests.integration.api.conftest import Caller, make_caller
from tests.integration.loop.conftest import Loop
from tests.integration.loop.hook_probe import Probe, installed, raising, waiting
from tests.integration.loop.test_kinds import sent_spec

SHORT = {"name": "a", "image": "busybox", "kind": "probe"}
HOST = {"source": "/data/a", "target": "/in", "read_only": True}
ZONE = {"key": "zone", "op": "eq", "values": ["a"], "required": True}


@pytest.fixture
def probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Probe]:
    # Calls that another test left hanging do not count here.
    monkeypatch.setattr(registry, "_calls", BoundedCalls())
    with installed(tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> Iterator[Signal]:
    """What a hook waits for that is too slow; it is given up soon, and released after the test."""
    monkeypatch.setattr(bounded_calls, "SECONDS", 0.05)
    signal = Signal()
    yield signal
    signal.set()


@pytest.fixture
def submitter(loop: Loop) -> Caller:
    return make_caller("ann", Role.SUBMITTER)


def setting(**changes: Any) -> Any:
    return lambda terms: replace(terms, **changes)


# ------------------------------------------------------------------------------ prepare


def test_terms_set_by_a_kind_are_shown_and_reach_the_cell(
    loop: Loop, submitter: Caller, probe: Probe
) -> None:
    Pool.objects.update(allowed_mounts=[{"path": "/data", "read_only": True}])
    changes: dict[str, Any] = {
        "constraints": (ZONE,),
        "placement_tags": ("ssd",),
        "mounts": (HOST,),
        "resources": {"cpu": 2, "memory": "64Mi"},
        "timeout_seconds": 60.0,
    }
    probe.acts["prepare"] = lambda terms: replace(
        terms, env={**terms.env, "KIND": "probe"}, **changes
    )
    body = {**SHORT, "env": {"OWN": "1"}, "allow_unsatisfiable": True}
    answer = submitter.post("/jobs", body)
    assert answer.status == 201
    shown = submitter.get(f"/jobs/{answer.json['id']}").json
    assert shown["groups"][0]["prepared"] == {
        "env": {"OWN": "1", "KIND": "probe"},
        "constraints": [ZONE],
        "placement_tags": ["ssd"],
        "mounts": [HOST],
        "resources": {"cpu": "2", "memory": "64Mi", "disk": "0Mi", "gpu": 0},
        "timeout_seconds": 60.0,
    }
    assert shown["spec"] == body
    [group] = Job.objects.get().groups.all()
    spec = load_group_specs([group.pk]).read[group.pk]
    assert spec.env == {"OWN": "1", "KIND": "probe"}
    assert [mount.body() for mount in spec.mounts] == [HOST]
    assert (group.resources["cpu_millis"], group.timeout_seconds) == (2000, 60.0)


def test_constraint_and_environment_set_by_a_kind_take_effect(loop: Loop, probe: Probe) -> None:
    near, far = loop.cell("near"), loop.cell("far")
    Cell.objects.filter(name="near").update(labels={"zone": "a"})
    probe.acts["prepare"] = setting(constraints=(ZONE,), env={"KIND": "probe"})
    job = loop.submit(kind="probe", replicas=2)
    loop.place()
    assert {attempt.cell.name for attempt in loop.attempts(job)} == {"near"}
    assert sent_spec(near).env == {"KIND": "probe"}
    assert far.run_orders() == []


def test_a_job_whose_kind_sets_nothing_shows_nothing(
    loop: Loop, submitter: Caller, probe: Probe
) -> None:
    for kind in ("plain", "batch"):
        answer = submitter.post("/jobs", {**SHORT, "kind": kind})
        shown = submitter.get(f"/jobs/{answer.json['id']}").json
        assert shown["groups"][0]["prepared"] == {}


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"env": {"NOT A NAME": "x"}}, "env.NOT A NAME", "must match"),
        ({"env": {"A": "\0"}}, "env.A", "NUL"),
        ({"env": {"A": 5}}, "env.A", "must be a text"),
        ({"resources": {"cpu": -1}}, "resources.cpu", "must not be negative"),
        ({"resources": {"cpu": 1000}}, "resources.cpu", "larger than"),
        ({"timeout_seconds": 0.0}, "timeout_seconds", "must be at least"),
        ({"constraints": ({"key": "zone", "op": "in"},)}, "constraints[0].values", "at least one"),
        ({"constraints": ({"key": "zone"},)}, "constraints[0].op", "is required"),
        ({"placement_tags": ("a", "a")}, "placement_tags[1]", "named twice"),
        ({"mounts": (HOST,)}, "mounts[0].source", "allows no mount of /data/a"),
        ({"ports": ("a", "a")}, "ports[1]", "named twice"),
    ],
)
def test_invalid_terms_set_by_a_kind_refuse_the_submission(
    loop: Loop,
    submitter: Caller,
    probe: Probe,
    changes: dict[str, Any],
    field: str,
    words: str,
) -> None:
    loop.cell()
    probe.acts["prepare"] = setting(**changes)
    answer = submitter.post("/jobs", SHORT)
    assert answer.status == 422
    [(found, text)] = answer.faults.items()
    assert found == field
    assert words in text
    assert text.endswith("(set by kind probe)")
    assert not Job.objects.exists()


def test_fault_of_the_submission_is_not_attributed_to_the_kind(
    loop: Loop, submitter: Caller, probe: Probe
) -> None:
    probe.acts["prepare"] = setting(env={"KIND": "probe"})
    faults = submitter.post("/jobs", {**SHORT, "mounts": [HOST]}).faults
    assert list(faults) == ["mounts[0].source"]
    assert "probe" not in faults["mounts[0].source"]


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (raising, "the hook probe failed at group b: RuntimeError('no luck')"),
        (lambda terms: None, "prepare returned NoneType instead of GroupTerms"),
        (lambda terms: terms.env.update(A="1"), "the hook probe failed at group b"),
    ],
)
def test_failing_prepare_hook_refuses_the_submission(
    loop: Loop, submitter: Caller, probe: Probe, act: Any, words: str
) -> None:
    probe.acts["prepare"] = lambda terms: act(terms) if terms.origin.group == "b" else terms
    groups = [{"name": name, "image": "x"} for name in ("a", "b")]
    answer = submitter.post("/jobs", {"name": "a", "kind": "probe", "groups": groups})
    assert answer.status == 422
    assert list(answer.faults) == ["kind"]
    assert words in answer.faults["kind"]


def test_slow_prepare_hook_refuses_only_its_own_submission(
    loop: Loop, submitter: Caller, probe: Probe, never: Signal
) -> None:
    probe.acts["prepare"] = waiting(never)
    answer = submitter.post("/jobs", SHORT)
    assert answer.status == 422
    expected = "the hook probe did not return for group main: it took longer than 0.05 s"
    assert answer.faults == {"kind": expected}
    for kind in ("plain", "batch"):
        assert submitter.post("/jobs", {**SHORT, "kind": kind}).status == 201


@pytest.fixture
def clock_of_calls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds by which the calls of a submission are timed; a hook may add to them."""
    seconds = [0.0]
    monkeypatch.setattr(registry, "monotonic", lambda: seconds[0])
    return seconds


def taking(seconds: float, clock_of_calls: list[float]) -> Any:
    def act(terms: GroupTerms) -> GroupTerms:
        clock_of_calls[0] += seconds
        return terms

    return act


def test_hook_calls_of_a_submission_are_limited_to_ten_seconds(
    loop: Loop, submitter: Caller, probe: Probe, clock_of_calls: list[float]
) -> None:
    probe.acts["prepare"] = taking(0.9, clock_of_calls)
    groups = [{"name": f"g{number}", "image": "x"} for number in range(40)]
    answer = submitter.post("/jobs", {"name": "a", "kind": "probe", "groups": groups})
    assert answer.status == 422
    assert "the hooks of this submission took longer than 10 s" in answer.faults["kind"]
    assert len(probe.calls_of("prepare")) == 12
    assert submitter.post("/jobs", SHORT).status == 201


def test_hook_calls_of_a_retry_are_limited_to_ten_seconds(
    loop: Loop, probe: Probe, clock_of_calls: list[float]
) -> None:
    Pool.objects.update(max_building_per_cell=None)
    cell = loop.cell()
    small = {"cpu": 0.01, "memory": "6Mi"}
    groups = [{"name": f"g{number}", "image": "x", "resources": small} for number in range(14)]
    job = loop.submit(kind="probe", groups=groups)
    loop.place()
    for attempt in loop.attempts(job):
        cell.end(attempt, S.FAILED, exit_code=1)
    probe.acts["prepare"] = taking(0.9, clock_of_calls)
    with pytest.raises(Conflict, match="took longer than 10 s"):
        retry_job(job_id=job.pk, guid=None, actor="owner", now=clock.now())


def test_retry_prepares_the_submitted_spec_again(loop: Loop, probe: Probe) -> None:
    def once_more(terms: GroupTerms) -> GroupTerms:
        return replace(terms, env={**terms.env, "PATHS": terms.env.get("PATHS", "") + ":/more"})

    cell = loop.cell()
    probe.acts["prepare"] = once_more
    job = loop.submit(kind="probe", env={"PATHS": "/own"})
    for _ in range(2):
        assert get_job(job.pk)["groups"][0]["prepared"] == {"env": {"PATHS": "/own:/more"}}
        loop.place()
        assert sent_spec(cell).env == {"PATHS": "/own:/more"}
        cell.end(loop.attempts(job)[-1], S.FAILED, exit_code=1)
        done = retry_job(job_id=job.pk, guid=None, actor="owner", now=clock.now())
        job = Job.objects.get(pk=done.job_id)
        assert job.spec["env"] == {"PATHS": "/own"}


def test_same_guid_and_body_match_regardless_of_what_the_kind_sets(
    loop: Loop, submitter: Caller, probe: Probe
) -> None:
    body = {**SHORT, "guid": "g"}
    first = submitter.post("/jobs", body)
    probe.acts["prepare"] = setting(env={"KIND": "probe"})
    again = submitter.post("/jobs", body)
    assert (first.status, again.status) == (201, 200)
    assert again.json["id"] == first.json["id"]


# --------------------------------------------------------------------- placed and started


def placed(loop: Loop, **body: Any) -> Job:
    job = loop.submit(name="hooked", kind="probe", **body)
    loop.place()
    return job


def run_hooks(loop: Loop) -> None:
    """A tick of hooks, and what follows for jobs that it ended."""
    hooks.run()
    loop.converge()


def start(loop: Loop, cell: Any, job: Job) -> None:
    at = clock.now().timestamp()
    for attempt in loop.attempts(job):
        cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING, started_at=at))


def test_hook_is_called_when_an_attempt_is_placed_and_started(loop: Loop, probe: Probe) -> None:
    cell = loop.cell()
    job = placed(loop, replicas=2)
    hooks.run()
    start(loop, cell, job)
    hooks.run()
    hooks.run()
    for moment in ("placed", "started"):
        events = probe.calls_of(f"on_{moment}")
        assert [event.attempt for event in events] == [str(a.uid) for a in loop.attempts(job)]
        assert {(event.moment, event.job_id, event.cell) for event in events} == {
            (moment, job.pk, "cell-1")
        }
        assert [(event.group, event.index, event.number) for event in events] == [
            ("main", 0, 1),
            ("main", 1, 1),
        ]
    assert not HookCall.objects.exists()
    assert loop.states(job) == ["RUNNING"] * 2


def test_start_reported_with_the_end_calls_on_started(loop: Loop, probe: Probe) -> None:
    cell = loop.cell()
    job = placed(loop)
    cell.end(loop.attempts(job)[0], S.SUCCEEDED, exit_code=0, started_at=clock.now().timestamp())
    hooks.run()
    assert len(probe.calls_of("on_started")) == 1
    never_began = placed(loop)
    cell.end(loop.attempts(never_began)[0], S.FAILED, exit_code=1)
    hooks.run()
    assert len(probe.calls_of("on_started")) == 1


def test_a_hook_ends_its_job_with_its_reason(loop: Loop, probe: Probe) -> None:
    cell = loop.cell()
    probe.acts["on_placed"] = lambda event: EndOfJob("the licence server knows no such user")
    job, other = placed(loop), loop.submit()
    loop.place()
    run_hooks(loop)
    job.refresh_from_db()
    assert (loop.state(job), loop.states(job)) == ("FAILED", ["KILLED"])
    assert job.failure_reason == "the licence server knows no such user"
    assert job.ending_reason == "ended_by_hook"
    assert cell.stop_orders() == [str(loop.attempts(job)[0].uid)]
    assert loop.states(other) == ["ASSIGNED"]


@pytest.mark.parametrize("method", ["on_placed", "on_started"])
@pytest.mark.parametrize("is_slow", [False, True])
def test_failing_or_slow_hook_ends_only_its_own_job(
    loop: Loop, probe: Probe, never: Signal, method: str, is_slow: bool
) -> None:
    cell = loop.cell()
    bad = loop.submit(name="bad", kind="probe")
    others = [loop.submit(kind=kind) for kind in ("probe", "plain", "batch")]
    fault = waiting(never) if is_slow else raising
    probe.acts[method] = lambda event: fault(event) if event.job_id == bad.pk else None
    loop.place()
    for job in (bad, *others):
        start(loop, cell, job)
    run_hooks(loop)
    assert [loop.states(job) for job in others] == [["RUNNING"]] * 3
    assert (loop.state(bad), loop.states(bad)) == ("FAILED", ["KILLED"])
    why = "it took longer than 0.05 s" if is_slow else "it raised RuntimeError('no luck')"
    text = f"the hook probe failed in {method}: {why}"
    bad.refresh_from_db()
    assert (bad.failure_reason, bad.ending_reason) == (text, "hook_failed")
    ends = Transition.objects.filter(job_id=bad.pk, reason="hook_failed")
    assert {(row.task_id is None, row.message) for row in ends} == {(True, text), (False, text)}
    alert = Alert.objects.get(kind="plugin_failed")
    assert (alert.subject, alert.text) == ("hook probe", text)


class Unprintable(Exception):
    """An error that cannot even be described."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


def raising_unprintable(argument: Any) -> Any:
    raise Unprintable


@pytest.mark.parametrize("method", ["on_placed", "on_end"])
@pytest.mark.parametrize(
    "act", [raising_unprintable, lambda argument: EndOfJob("a\0b\ud800"), lambda argument: 5]
)
def test_invalid_hook_result_ends_the_job_with_a_printable_reason(
    loop: Loop, probe: Probe, method: str, act: Any
) -> None:
    cell = loop.cell()
    probe.acts[method] = act
    job, other = placed(loop), loop.submit()
    loop.place()
    for one in (job, other):
        if method == "on_end":
            cell.end(loop.attempts(one)[0], S.SUCCEEDED, exit_code=0)
    run_hooks(loop)
    job.refresh_from_db()
    assert loop.state(job) == "FAILED"
    assert job.failure_reason.isprintable()
    assert loop.states(other) == (["SUCCEEDED"] if method == "on_end" else ["ASSIGNED"])


def test_calls_of_a_hanging_hook_are_limited(loop: Loop, probe: Probe, never: Signal) -> None:
    loop.cell()
    probe.acts["on_placed"] = waiting(never)
    jobs = [loop.submit(kind="probe", resources={"cpu": 0.1}) for _ in range(6)]
    other = loop.submit(kind="batch", resources={"cpu": 0.1})
    loop.place()
    run_hooks(loop)
    assert len(probe.calls_of("on_placed")) == bounded_calls.MOST_STUCK
    assert [loop.state(job) for job in jobs] == ["FAILED"] * 6
    jobs[-1].refresh_from_db()
    assert "4 earlier calls of it have not returned" in jobs[-1].failure_reason
    assert loop.states(other) == ["ASSIGNED"]


def test_no_lock_is_held_while_a_hook_is_called(loop: Loop, probe: Probe) -> None:
    loop.cell()
    here, inside = connections["default"], list[bool]()
    probe.acts["on_placed"] = lambda event: inside.append(here.in_atomic_block)
    placed(loop)
    hooks.run()
    assert inside == [False]


def test_hook_call_of_a_dead_process_is_repeated(
    loop: Loop, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.cell()
    placed(loop)
    with monkeypatch.context() as dying:
        dying.setattr("controlplane.commands.attempts.hook_calls._forget", raising)
        with pytest.raises(RuntimeError):
            hooks.run()
    hooks.run()
    assert len(probe.calls_of("on_placed")) == 1  # it is still claimed
    HookCall.objects.update(claimed_until=clock.now())
    hooks.run()
    assert len(probe.calls_of("on_placed")) == 2
    assert not HookCall.objects.exists()


def test_hook_calls_without_time_are_left_to_the_next_tick(
    loop: Loop, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.cell()
    placed(loop, replicas=3, resources={"cpu": 0.1})
    monkeypatch.setattr(hooks, "SECONDS", -1.0)
    assert hooks.run() == 0
    assert probe.calls_of("on_placed") == []
    assert HookCall.objects.filter(claimed_until=None).count() == 3


def test_kinds_alternate_when_many_calls_of_one_are_due(
    loop: Loop, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.cell()
    job = loop.submit(replicas=3, resources={"cpu": 0.1})
    loop.place()
    for attempt in loop.attempts(job):
        HookCall.objects.create(
            kind="busy", moment="placed", job_id=job.pk, attempt_uid=attempt.uid, at=clock.now()
        )
    placed(loop)
    monkeypatch.setattr(hook_calls, "PAGE", 2)
    hooks.run()
    assert len(probe.calls_of("on_placed")) == 1
    assert HookCall.objects.filter(kind="busy").count() == 2


def test_hook_call_for_a_deleted_attempt_is_dropped(loop: Loop, probe: Probe) -> None:
    loop.cell()
    job = placed(loop)
    for attempt in loop.attempts(job):
        attempt.delete()
    hooks.run()
    assert (probe.calls_of("on_placed"), HookCall.objects.count()) == ([], 0)


@pytest.mark.parametrize("kind", ["batch", "plain"])
def test_kind_without_hook_methods_takes_no_hook_statements(
    loop: Loop, probe: Probe, kind: str
) -> None:
    cell = loop.cell()
    job = loop.submit(kind=kind)
    with CaptureQueriesContext(connection) as queries:
        loop.place()
        start(loop, cell, job)
    assert not any("hookcall" in query["sql"] for query in queries.captured_queries)


# --------------------------------------------------------------------------------- ends


def test_on_end_hook_decides_the_outcome_of_an_attempt(loop: Loop, probe: Probe) -> None:
    cell = loop.cell()
    probe.acts["on_end"] = lambda end: Event.EXITED_ZERO if end.exit_code == 3 else end.event
    job = placed(loop, replicas=2, max_task_failures=1)
    for attempt, code in zip(loop.attempts(job), (3, 4), strict=True):
        cell.end(attempt, S.FAILED, exit_code=code, reason="exit")
    assert loop.states(job) == ["SUCCEEDED", "FAILED"]
    ends = [(end.attempt, end.job_id, end.task_id) for end in probe.calls_of("on_end")]
    assert ends == [(str(a.uid), job.pk, a.task_id) for a in loop.attempts(job)]


@pytest.mark.parametrize("is_slow", [False, True])
def test_failing_on_end_hook_ends_only_its_own_job(
    loop: Loop, probe: Probe, never: Signal, is_slow: bool
) -> None:
    cell = loop.cell()
    bad = loop.submit(name="bad", kind="probe", replicas=2)
    good, plain = loop.submit(kind="probe"), loop.submit()
    fault = waiting(never) if is_slow else raising
    probe.acts["on_end"] = lambda end: fault(end) if end.job_id == bad.pk else end.event
    loop.place()
    ended = [loop.attempts(job)[0] for job in (bad, good, plain)]
    cell.report(*(AttemptReport(str(a.uid), 0, S.SUCCEEDED, exit_code=0, gone=True) for a in ended))
    loop.converge()
    assert [loop.state(job) for job in (good, plain)] == ["SUCCEEDED"] * 2
    assert (loop.state(bad), loop.states(bad)) == ("FAILED", ["SUCCEEDED", "KILLED"])
    bad.refresh_from_db()
    assert bad.failure_reason.startswith("the hook probe failed in on_end: ")
    assert Alert.objects.filter(kind="plugin_failed", subject="hook probe").exists()


def test_no_lock_is_held_during_an_on_end_call(loop: Loop, probe: Probe) -> None:
    cell = loop.cell()
    here, inside = connections["default"], list[bool]()

    def note(end: AttemptEnd) -> Event:
        inside.append(here.in_atomic_block)
        return end.event

    probe.acts["on_end"] = note
    job = placed(loop)
    cell.end(loop.attempts(job)[0], S.SUCCEEDED, exit_code=0)
    assert (inside, loop.state(job)) == ([False], "SUCCEEDED")


def test_invalid_on_end_result_fails_the_job(loop: Loop, probe: Probe) -> None:
    cell = loop.cell()
    probe.acts["on_end"] = lambda end: "nonsense"
    job = placed(loop)
    cell.end(loop.attempts(job)[0], S.SUCCEEDED, exit_code=0)
    assert loop.state(job) == "FAILED"
