"""Validators: what each defers and rejects, that all violations are listed, whole requests."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.placement.model.interfaces import (
    QuotaState,
    Request,
    ValidationResult,
    Validator,
)
from controlplane.domain.placement.model.policy import DEFAULT_VALIDATORS
from controlplane.domain.placement.model.snapshot import ShapeFacts
from controlplane.domain.placement.plugins.validators import BUILT_IN
from controlplane.domain.scopes import ScopeKind, ScopeLimits
from controlplane.domain.state.states import Band
from tests.harness.domain.facts import NOW

NAMES = ("cpu_millis", "gpu", "memory_mib")
KINDS = {
    "user_quota": ScopeKind.USER,
    "project_quota": ScopeKind.PROJECT,
    "domain_quota": ScopeKind.DOMAIN,
}

COUNTING = (*KINDS, "concurrency")

few = st.integers(0, 6)
amounts = st.dictionaries(st.sampled_from(NAMES), few)
maybe = st.none() | few


def validator(name: str) -> Validator:
    return BUILT_IN[name]()


def quota(kind: ScopeKind = ScopeKind.USER, **changes: Any) -> QuotaState:
    limits = ScopeLimits(
        resources=changes.pop("limits", {}),
        running_tasks=changes.pop("most_tasks", None),
        running_jobs=changes.pop("most_jobs", None),
        pending_tasks=changes.pop("most_pending", None),
    )
    facts: dict[str, Any] = {"resources": {}, "running_tasks": 0, "running_jobs": 0, **changes}
    return QuotaState(kind, f"{kind} some-{kind}", limits, **facts)


def request(
    tasks: int = 1,
    each: Mapping[str, int] | None = None,
    quotas: Sequence[QuotaState] = (),
    *,
    allow_unsatisfiable: bool = False,
    **changes: Any,
) -> Request:
    shape = ShapeFacts(
        1,
        Band.BATCH,
        1,
        1,
        1,
        tasks,
        each or {},
        "container",
        allow_unsatisfiable=allow_unsatisfiable,
    )
    facts: dict[str, Any] = {"now": NOW, "startable_at": NOW, **changes}
    return Request(shape, tasks, each or {}, quotas, **facts)


@st.composite
def quotas(draw: st.DrawFn) -> QuotaState:
    kind = draw(st.sampled_from(list(ScopeKind)))
    return quota(
        kind,
        limits=draw(amounts),
        resources=draw(amounts),
        most_tasks=draw(maybe),
        running_tasks=draw(few),
        most_jobs=draw(maybe),
        running_jobs=draw(few),
        most_pending=draw(maybe),
        waiting=draw(few),
    )


@st.composite
def requests(draw: st.DrawFn) -> Request:
    return request(
        draw(st.integers(1, 6)),
        draw(amounts),
        draw(st.lists(quotas(), max_size=3)),
        allow_unsatisfiable=draw(st.booleans()),
        is_whole=draw(st.booleans()),
        new_jobs=draw(st.integers(0, 1)),
        startable_at=draw(st.none() | st.integers(-5, 5).map(lambda s: NOW + timedelta(seconds=s))),
    )


def against(name: str, requested: Request, tasks: int) -> list[tuple[str, str]]:
    """By the plain rule: what stands against so many tasks, as (quota, what)."""
    found = []
    for item in requested.quotas:
        limits = item.limits
        if KINDS.get(name) is item.kind:
            for what, limit in sorted(limits.resources.items()):
                each = requested.resources.get(what, 0)
                if each and item.resources.get(what, 0) + each * tasks > limit:
                    found.append((item.title, what))
        if name == "concurrency":
            if (
                limits.running_tasks is not None
                and item.running_tasks + tasks > limits.running_tasks
            ):
                found.append((item.title, "running_tasks"))
            if (
                limits.running_jobs is not None
                and requested.new_jobs
                and item.running_jobs + requested.new_jobs > limits.running_jobs
            ):
                found.append((item.title, "running_jobs"))
    return found


@given(requests())
def test_quota_admits_as_many_as_fit_and_lists_all_violations(
    requested: Request,
) -> None:
    for name in COUNTING:
        verdict = validator(name).check(requested)
        violations = [(item.figures["scope"], item.figures["what"]) for item in verdict.violations]
        assert violations == against(name, requested, requested.tasks)
        if requested.is_whole:
            assert verdict.admitted == (0 if violations else requested.tasks)
        else:
            fitting = [n for n in range(1, requested.tasks + 1) if not against(name, requested, n)]
            assert verdict.admitted == max(fitting, default=0)


@given(requests())
def test_quota_rejects_only_requests_above_the_whole_limit(requested: Request) -> None:
    verdicts = [validator(name).check(requested) for name in COUNTING]
    for item in [item for verdict in verdicts for item in verdict.violations]:
        figures = item.figures
        assert item.code == "quota_exceeded"
        assert figures["used"] + figures["requested"] > figures["limit"] or not requested.is_whole
        alone = figures["requested"] > figures["limit"]
        assert item.is_final == (alone and not requested.shape.allow_unsatisfiable)
        assert figures["scope"] in item.text


@given(requests())
def test_result_is_within_bounds_and_has_a_reason(requested: Request) -> None:
    for name in DEFAULT_VALIDATORS:
        verdict = validator(name).check(requested)
        assert 0 <= verdict.admitted <= requested.tasks
        assert (verdict.admitted == requested.tasks) == (not verdict.violations)
        if requested.is_whole:
            assert verdict.admitted in (0, requested.tasks)
        assert all(item.code and item.text for item in verdict.violations)


def test_every_built_in_validator_is_a_default() -> None:
    assert tuple(BUILT_IN) == DEFAULT_VALIDATORS


def test_all_exceeded_resources_of_a_quota_are_listed_with_figures() -> None:
    held = quota(limits={"cpu_millis": 2000, "memory_mib": 512}, resources={"cpu_millis": 1500})
    requested = request(1, {"cpu_millis": 1000, "memory_mib": 1024}, [held])
    verdict = validator("user_quota").check(requested)
    assert [item.text for item in verdict.violations] == [
        "quota of user some-user: 1.5 cores used + 1 core requested > 2 cores allowed",
        "quota of user some-user: 0 MiB of memory used + 1024 MiB of memory requested >"
        " 512 MiB of memory allowed",
    ]
    assert [item.is_final for item in verdict.violations] == [False, True]


def test_a_gang_counts_as_one_request() -> None:
    held = quota(limits={"gpu": 4}, resources={"gpu": 2})
    requested = request(3, {"gpu": 1}, [held], is_whole=True)
    verdict = validator("user_quota").check(requested)
    assert (verdict.admitted, verdict.violations[0].figures["requested"]) == (0, 3)
    assert not verdict.violations[0].is_final
    assert validator("user_quota").check(request(3, {"gpu": 1}, [held])).admitted == 2


def test_lowered_limit_defers_without_rejecting() -> None:
    held = quota(limits={"gpu": 2}, resources={"gpu": 8}, most_tasks=2, running_tasks=8)
    for name in ("user_quota", "concurrency"):
        verdict = validator(name).check(request(1, {"gpu": 1}, [held]))
        assert verdict.admitted == 0
        assert not verdict.violations[0].is_final


def test_running_job_does_not_count_as_a_new_job() -> None:
    held = quota(most_jobs=2, running_jobs=3)
    check = validator("concurrency").check
    assert check(request(4, quotas=[held], new_jobs=0)) == ValidationResult(4)
    assert check(request(4, quotas=[held], new_jobs=1)).admitted == 0


def test_first_tasks_of_a_scope_are_within_the_pending_limit() -> None:
    check = validator("pending_limit").check
    limit = quota(most_pending=5)
    assert check(request(8, quotas=[limit])).admitted == 5
    assert check(request(8, quotas=[quota(most_pending=5, waiting=3)])).admitted == 2
    assert check(request(1, quotas=[quota(most_pending=5, waiting=5)])).admitted == 0
    # A gang larger than the limit would otherwise never start behind itself.
    assert check(request(8, quotas=[limit], is_whole=True)) == ValidationResult(8)
    assert check(request(8, quotas=[quota(most_pending=5, waiting=1)], is_whole=True)).admitted == 0


def test_temporary_violations_are_not_final() -> None:
    early = request(startable_at=NOW + timedelta(seconds=1))
    assert not validator("start_time").check(early).violations[0].is_final
    assert validator("start_time").check(request(startable_at=NOW)) == ValidationResult(1)
    # What depends on others has no start time yet, and has one reason for that.
    open_one = request(2, startable_at=None)
    assert validator("start_time").check(open_one) == ValidationResult(2)
    verdict = validator("dependencies").check(open_one)
    assert (verdict.admitted, verdict.violations[0].is_final) == (0, False)
    waiting = request(quotas=[quota(most_pending=0)])
    assert not validator("pending_limit").check(waiting).violations[0].is_final
