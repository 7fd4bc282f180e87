"""The built-in kinds: what they refuse, what they make of ends; and what a faulty hook may not."""

from dataclasses import replace
from typing import Any

import pytest

from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.domain.cells.reports import decide_report
from controlplane.domain.hooks.built_in import (
    BUILT_IN,
    BatchHook,
    InferenceHook,
    InteractiveHook,
)
from controlplane.domain.hooks.interface import AttemptEnd, GroupTerms, Hook
from controlplane.domain.hooks.preparing import prepare_job
from controlplane.domain.jobs.launch import launch_of, time_limit_of
from controlplane.domain.jobs.submission import PlannedGroup, plan_groups
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.states import ACTIVE, TERMINAL, Reason
from controlplane.domain.state.transitions import Event
from controlplane.spec import JobSpec, parse_job
from controlplane.spec.parsing import field_path
from tests.harness.domain.facts import NOW, SENDER, attempt, report, task

CHECK = {"http": {"port": "http"}, "interval_seconds": 1}


def faults(kind: str, **fields: Any) -> dict[str, str]:
    spec = parse_job({"name": "a", "image": "busybox", "kind": kind, **fields})
    found = prepare_job(spec, BUILT_IN[kind]()).findings
    return {field_path(place, is_short=True): text for place, text in found}


@pytest.mark.parametrize("kind", BUILT_IN)
def test_each_kind_accepts_only_its_own_fields(kind: str) -> None:
    needed: dict[str, Any] = {"ports": ["http"]}
    if kind == "inference":
        needed["health_check"] = CHECK
    assert faults(kind, **needed) == {}
    limit = {"idle_timeout_seconds"} if kind != "interactive" else set()
    assert faults(kind, **needed, idle_timeout_seconds=60).keys() == limit
    limit = {"lifetime_seconds"} if kind != "interactive" else set()
    assert faults(kind, **needed, lifetime_seconds=60).keys() == limit
    check = {"health_check"} if kind != "inference" else set()
    assert faults(kind, **{**needed, "health_check": CHECK}).keys() == check


def test_inference_without_a_health_check_is_refused_at_its_group() -> None:
    groups = [{"name": "one", "image": "busybox"}, {"name": "two", "image": "busybox"}]
    spec = parse_job({"name": "a", "kind": "inference", "groups": groups})
    found = prepare_job(spec, InferenceHook()).findings
    places = [field_path(place, is_short=False) for place, _ in found]
    assert places == ["groups[0].health_check", "groups[1].health_check"]
    assert found[0][1] == "is required for kind inference"


def planned(spec: JobSpec, hook: Hook) -> list[PlannedGroup]:
    prepared = prepare_job(spec, hook)
    assert not prepared.findings
    return plan_groups(prepared.spec, now=NOW, changes=prepared.changes)


def test_launch_has_the_terms_as_changed_by_the_hook() -> None:
    fields = {"ports": ["http"], "idle_timeout_seconds": 60, "lifetime_seconds": 600}
    spec = parse_job({"name": "a", "image": "busybox", "kind": "interactive", **fields})
    [group] = planned(spec, InteractiveHook())
    assert {name: group.launch[name] for name in fields} == fields
    assert group.timeout_seconds == 600, "what the cell does not end, the control plane does"

    class Shorter(InteractiveHook):
        def prepare(self, terms: GroupTerms) -> GroupTerms:
            less = replace(terms, idle_timeout_seconds=None, ports=())
            return replace(less, lifetime_seconds=5.0, timeout_seconds=7.0)

    [group] = planned(spec, Shorter())
    assert (group.launch["lifetime_seconds"], group.launch["timeout_seconds"]) == (5, 7)
    assert group.timeout_seconds == 5
    assert "ports" not in group.launch
    assert "idle_timeout_seconds" not in group.launch


def test_launch_has_the_health_check_in_wire_format() -> None:
    fields = {"ports": ["http"], "health_check": {"http": {"port": "http", "path": "/up"}}}
    spec = parse_job({"name": "a", "image": "busybox", "kind": "inference", **fields})
    [group] = prepare_job(spec, InferenceHook()).spec.groups
    launch, _ = launch_of(group, exclusive=False)
    assert launch["health_check"] == {
        "port": "http",
        "path": "/up",
        "interval_seconds": 5.0,
        "timeout_seconds": 5.0,
        "retries": 3,
        "start_period_seconds": 60.0,
    }
    assert time_limit_of(group) == (None, False)


@pytest.mark.parametrize(
    ("event", "exit_code", "was_running", "meant"),
    [
        (Event.EXITED_ZERO, 0, True, Event.HEALTH_FAILED),
        (Event.USER_FAILED, 1, True, Event.HEALTH_FAILED),
        (Event.VANISHED, 137, True, Event.HEALTH_FAILED),
        (Event.VANISHED, None, True, Event.VANISHED),
        (Event.SYSTEM_FAILED, None, True, Event.SYSTEM_FAILED),
        (Event.EXITED_ZERO, 0, False, Event.USER_FAILED),
        (Event.USER_FAILED, 1, False, Event.USER_FAILED),
        (Event.VANISHED, 137, False, Event.VANISHED),
    ],
)
def test_end_of_a_started_inference_service_is_not_charged(
    event: Event, exit_code: int | None, was_running: bool, meant: Event
) -> None:
    assert InferenceHook().on_end(AttemptEnd(event, was_running, exit_code)) is meant
    for hook in (BatchHook(), InteractiveHook()):
        assert hook.on_end(AttemptEnd(event, was_running, exit_code)) is event


# ----------------------------------------------------------------------------- in a report


def decided(state: S, incoming: Any, hook: Hook) -> ChangeTask:
    change = decide_report(task(state, attempt(state)), incoming, SENDER, now=NOW, hook=hook)
    assert isinstance(change, ChangeTask), change
    return change


def test_ended_service_is_requeued_without_a_charge() -> None:
    change = decided(S.RUNNING, report(S.SUCCEEDED, exit_code=0, gone=True), InferenceHook())
    assert change.task_to is S.PENDING
    assert change.attempt is not None
    assert (change.attempt.state_to, change.attempt.charged) == (S.FAILED, None)
    assert change.steps[0].reason is Reason.ENDED_EARLY
    assert change.not_before is not None
    assert change.not_before > NOW


def test_ended_service_without_a_running_report_is_not_charged() -> None:
    incoming = report(S.FAILED, exit_code=1, reason="exit", gone=True, started_at=NOW.timestamp())
    assert decided(S.ASSIGNED, incoming, InferenceHook()).task_to is S.PENDING


def test_a_service_that_never_became_healthy_has_failed() -> None:
    incoming = report(
        S.FAILED,
        exit_code=143,
        failure_kind=FailureKind.USER,
        reason="health_check",
        message="not healthy within 5 s: HTTP status 500",
        gone=True,
    )
    change = decided(S.BUILDING, incoming, InferenceHook())
    assert change.task_to is S.FAILED
    assert change.failure_reason == "not healthy within 5 s: HTTP status 500"
    assert change.steps[0].reason is Reason.HEALTH_CHECK_FAILED


@pytest.mark.parametrize(
    ("reported", "reason"),
    [("idle_timeout", Reason.IDLE_TIMEOUT), ("lifetime_over", Reason.LIFETIME_OVER)],
)
def test_task_ended_by_a_limit_is_killed_and_not_retried(reported: str, reason: Reason) -> None:
    change = decided(S.RUNNING, report(S.KILLED, exit_code=143, reason=reported), InteractiveHook())
    assert (change.task_to, change.steps[0].reason) == (S.KILLED, reason)


def test_addresses_are_kept_in_the_attempt_details() -> None:
    incoming = report(S.RUNNING, usage={"peak": 1}, addresses={"http": "10.0.0.1:8080"})
    change = decided(S.BUILDING, incoming, BatchHook())
    assert change.attempt is not None
    assert change.attempt.usage == {"peak": 1}
    assert change.attempt.details == {"addresses": {"http": "10.0.0.1:8080"}}


# ----------------------------------------------------------------------------- of others


class Foreign:
    """A hook of another package."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        raise KeyError("it is broken")

    def on_end(self, end: AttemptEnd) -> Event:
        return self._event


def test_hook_can_turn_a_failure_into_a_success() -> None:
    incoming = report(S.FAILED, exit_code=3, reason="exit", gone=True)
    assert decided(S.RUNNING, incoming, Foreign(Event.EXITED_ZERO)).task_to is S.SUCCEEDED


@pytest.mark.parametrize("event", [Event.PLACED, Event.REFUSED, Event.BUILDING, Event.KILLED])
def test_hook_event_that_is_no_program_end_is_ignored(event: Event) -> None:
    incoming = report(S.FAILED, exit_code=3, reason="exit", gone=True)
    assert decided(S.RUNNING, incoming, Foreign(event)).task_to is S.FAILED


@pytest.mark.parametrize("state", sorted(ACTIVE))
@pytest.mark.parametrize("event", Event)
def test_end_stays_an_end_whatever_event_a_hook_returns(state: S, event: Event) -> None:
    for incoming in (
        report(S.SUCCEEDED, exit_code=0, gone=True),
        report(S.FAILED, exit_code=1, reason="exit", gone=True),
        report(S.FAILED, failure_kind=FailureKind.SYSTEM, reason="engine", gone=True),
        report(S.FAILED, failure_kind=FailureKind.OUTSIDE, reason="vanished", gone=True),
    ):
        change = decided(state, incoming, Foreign(event))
        assert change.attempt is not None
        assert change.attempt.state_to in TERMINAL
        assert not change.attempt_open


def test_failing_hook_is_reported_at_the_kind() -> None:
    spec = parse_job({"name": "a", "image": "busybox", "kind": "foreign"})
    [(place, text)] = prepare_job(spec, Foreign(Event.EXITED_ZERO)).findings
    assert place == ("kind",)
    assert text == "the hook foreign failed at group main: KeyError('it is broken')"
