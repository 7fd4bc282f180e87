"""What can never run is refused where it was written, with what lacks; all else is taken."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from controlplane.domain.constraints import Tags
from controlplane.domain.jobs.satisfiability import AdmissionPool, find_unsatisfiable
from controlplane.domain.placement.model.snapshot import CellFacts
from controlplane.domain.scopes import Quota, Scope, ScopeKind, ScopeLimits
from controlplane.domain.state.states import CellState
from controlplane.spec import parse_job
from controlplane.spec.parsing import field_path
from tests.harness.domain.facts import NOW

CPU, MEMORY = "cpu_millis", "memory_mib"
HINT = " (allow_unsatisfiable: true takes the job anyway)"


def cell(
    name: str,
    capacity: Mapping[str, int],
    *types: str,
    labels: Mapping[str, str] | None = None,
    tags: Sequence[str] = (),
    state: CellState = CellState.READY,
) -> CellFacts:
    return CellFacts(
        cell_id=sum(map(ord, name)),
        name=name,
        state=state,
        incarnation="",
        capacity=capacity,
        used={},
        task_types=frozenset(types or ("container",)),
        labels=labels or {},
        tags=Tags.read(tags),
    )


SMALL = cell("small", {CPU: 1000, MEMORY: 1000})
LARGE = cell("large", {CPU: 4000, MEMORY: 1000})
OTHER = cell("other", {CPU: 9000, MEMORY: 9000}, "process")


def user(**limits: Any) -> Quota:
    return Quota(Scope(ScopeKind.USER, 1), "ann", ScopeLimits(**limits))


def refusals(
    body: Mapping[str, Any],
    *cells: CellFacts,
    tokens: Mapping[str, int] | None = None,
    quotas: Sequence[Quota] = (),
    **pool: Any,
) -> dict[str, str]:
    """By field, why the job is refused, less the hint that each must give."""
    job = {"name": "a", **body}
    groups = job.get("groups", [job])
    for group in groups:
        if group.get("task_type") != "process":
            group.setdefault("image", "busybox")
    is_short = "groups" not in body
    offered = AdmissionPool(1, "default", tokens=tokens or {}, cells=cells, **pool)
    [found] = find_unsatisfiable([(parse_job(job), quotas)], offered, now=NOW)
    assert all(text.endswith(HINT) for _, text in found)
    return {field_path(place, is_short=is_short): text.removesuffix(HINT) for place, text in found}


def needs(**resources: Any) -> dict[str, Any]:
    return {"resources": {"memory": "64Mi", **resources}}


def wants(key: str, op: str, *values: str, required: bool = True) -> dict[str, Any]:
    return {"key": key, "op": op, "values": list(values), "required": required}


# ------------------------------------------------------------------------------------ one task


def test_job_that_fits_one_empty_cell_in_any_state_is_accepted() -> None:
    assert refusals(needs(cpu=4), SMALL, LARGE) == {}
    lost = cell("lost", {CPU: 9000, MEMORY: 1000}, state=CellState.LOST)
    assert refusals(needs(cpu=9), SMALL, lost) == {}


def test_pool_without_matching_cells_accepts_every_job() -> None:
    assert refusals(needs(cpu=9999)) == {}
    assert refusals(needs(cpu=9999), OTHER) == {}
    assert refusals({**needs(), "constraints": [wants("zone", "exists")]}, OTHER) == {}


def test_job_larger_than_all_cells_is_refused_with_the_shortfall() -> None:
    assert refusals(needs(cpu=5), SMALL, OTHER, LARGE) == {
        "resources.cpu": "larger than every cell of the pool: large comes closest and"
        " lacks 1 of 5 cores"
    }
    assert list(refusals(needs(memory="2000Mi"), LARGE)) == ["resources.memory"]
    assert list(refusals(needs(disk="1Gi"), LARGE)) == ["resources.disk"]
    assert refusals(needs(licence=2), LARGE, cell("b", {CPU: 4000, MEMORY: 100, "licence": 1})) == {
        "resources.licence": "larger than every cell of the pool: b comes closest and lacks"
        " 1 of 2 licence"
    }


def test_each_group_has_its_own_fault() -> None:
    groups = [{"name": "x"}, {"name": "y", **needs(cpu=5)}, {"name": "z", **needs(gpu=1)}]
    assert list(refusals({"groups": groups}, LARGE)) == [
        "groups[1].resources.cpu",
        "groups[2].resources.gpu",
    ]


def test_allow_unsatisfiable_accepts_any_job() -> None:
    body = {**needs(cpu=5), "allow_unsatisfiable": True}
    assert refusals(body, LARGE, quotas=[user(resources={CPU: 1})]) == {}


# ------------------------------------------------------------------------- constraints and tags

ZONE_A = cell("a", {CPU: 1000, MEMORY: 1000}, labels={"zone": "a", "gb": "64"})
ZONE_B = cell("b", {CPU: 4000, MEMORY: 1000}, labels={"zone": "b", "gb": "16"})


def test_only_matching_cells_are_considered() -> None:
    in_a = {"constraints": [wants("zone", "eq", "a")]}
    assert refusals({**needs(cpu=1), **in_a}, ZONE_A, ZONE_B) == {}
    assert refusals({**needs(cpu=2), **in_a}, ZONE_A, ZONE_B) == {
        "resources.cpu": "larger than every cell of the pool: a comes closest and"
        " lacks 1 of 2 cores"
    }


def test_preferred_constraints_cause_no_refusal() -> None:
    preferred = {"constraints": [wants("zone", "eq", "c", required=False)]}
    assert refusals({**needs(cpu=4), **preferred}, ZONE_A, ZONE_B) == {}


def test_labels_and_tags_without_a_cell_are_accepted() -> None:
    tagged = cell("t", {CPU: 1000, MEMORY: 1000}, tags=["quiet", "ssd?"])
    for fields in (
        {"constraints": [wants("zone", "eq", "c")]},
        {"placement_tags": ["loud"]},
        {"placement_tags": ["quiet"], **needs(cpu=1)},
    ):
        assert refusals(fields, ZONE_A, ZONE_B, tagged) == {}
    # Of the cells that match the largest counts.
    large = {"placement_tags": ["quiet", "ssd"], **needs(cpu=2)}
    assert list(refusals(large, ZONE_B, tagged)) == ["resources.cpu"]


# ------------------------------------------------------------------------------ tokens and quotas


def test_tokens_above_the_pool_total_are_refused() -> None:
    assert refusals(needs(licence=2), LARGE, tokens={"licence": 2}) == {}
    assert refusals(needs(licence=3), LARGE, tokens={"licence": 2}) == {
        "resources.licence": "tokens licence: 0 used + 3 requested > 2 of the pool"
    }
    assert list(refusals(needs(licence=3), tokens={"licence": 2})) == ["resources.licence"]


@pytest.mark.parametrize("kind", ScopeKind)
def test_task_above_a_quota_limit_is_refused(kind: ScopeKind) -> None:
    quota = Quota(Scope(kind, 1), "x", ScopeLimits(resources={CPU: 2000, "licence": 1}))
    assert refusals(needs(cpu=2), LARGE, quotas=[quota]) == {}
    assert refusals(needs(cpu=3), quotas=[quota]) == {
        "resources.cpu": f"quota of {kind} x: 0 cores used + 3 cores requested > 2 cores allowed"
    }
    assert list(refusals(needs(licence=2), quotas=[quota])) == ["resources.licence"]


def test_disabled_validator_causes_no_refusal() -> None:
    quotas = [user(resources={CPU: 2000}, running_tasks=0)]
    assert refusals(needs(cpu=3), quotas=quotas, validators=["domain_quota"]) == {}


def test_quota_of_zero_is_refused_and_a_busy_quota_is_not() -> None:
    many = {**needs(), "replicas": 9}
    assert refusals(many, quotas=[user(running_tasks=1, running_jobs=1, pending_tasks=1)]) == {}
    assert refusals(many, quotas=[user(running_tasks=0)]) == {
        "replicas": "quota of user ann: 0 running tasks + 1 requested > 0 allowed"
    }
    assert list(refusals(many, quotas=[user(running_jobs=0)])) == ["replicas"]


# ------------------------------------------------------------------------------------------ gangs


def gang(*groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    named = [{"name": f"g{n}", **group} for n, group in enumerate(groups)]
    return {"coscheduled": True, "groups": named, **fields}


def test_a_gang_larger_than_the_pool_waits_for_more_cells() -> None:
    assert refusals(gang({**needs(cpu=1), "replicas": 99}), SMALL, LARGE) == {}
    assert refusals(gang({**needs(cpu=1), "replicas": 9}, group_by="rack"), ZONE_A) == {}
    assert list(refusals(gang({**needs(cpu=9), "replicas": 2}), LARGE)) == [
        "groups[0].resources.cpu"
    ]


def test_the_minima_of_a_gang_must_fit_quotas_and_tokens() -> None:
    four = {**needs(cpu=1, licence=1), "replicas": 4}
    place = "groups[0].replicas"
    assert refusals(gang(four), quotas=[user(resources={CPU: 4000}, running_tasks=4)]) == {}
    assert refusals(gang(four), quotas=[user(resources={CPU: 3000})]) == {
        place: "quota of user ann: 0 cores used + 4 cores requested > 3 cores allowed"
    }
    assert refusals(gang(four), quotas=[user(running_tasks=3)]) == {
        place: "quota of user ann: 0 running tasks + 4 requested > 3 allowed"
    }
    assert refusals(gang(four), tokens={"licence": 3}) == {
        place: "tokens licence: 0 used + 4 requested > 3 of the pool"
    }
    assert refusals({"groups": [{"name": "x", **four}]}, tokens={"licence": 3}) == {}


def test_jobs_of_one_submission_are_checked_separately() -> None:
    fine, large = (
        parse_job({"name": "a", "image": "x"}),
        parse_job({"name": "a", "image": "x", "resources": {"cpu": 9}}),
    )
    pool = AdmissionPool(1, "default", cells=(LARGE,))
    found = find_unsatisfiable([(fine, ()), (large, ())], pool, now=NOW)
    assert [[place for place, _ in findings] for findings in found] == [
        [],
        [("groups", 0, "resources", "cpu")],
    ]


def test_equal_jobs_of_one_submission_have_the_same_faults_under_their_own_quotas() -> None:
    job = parse_job({"name": "a", "image": "x", "resources": {"cpu": 3}})
    small, large = user(resources={CPU: 2000}), user(resources={CPU: 3000})
    groups = parse_job(
        {
            "name": "b",
            "groups": [
                {"name": "one", "image": "x"},
                {"name": "two", "image": "x", "resources": {"cpu": 3}},
            ],
        }
    )
    labelled = parse_job(
        {
            "name": "c",
            "image": "x",
            "resources": {"cpu": 3},
            "constraints": [wants("zone", "eq", "none")],
        }
    )
    jobs = [(job, [small]), (job, [large]), (groups, [small]), (job, [small]), (labelled, [])]
    found = find_unsatisfiable(jobs, AdmissionPool(1, "default", cells=(SMALL,)), now=NOW)
    quota = "quota of user ann: 0 cores used + 3 cores requested > 2 cores allowed"
    assert [[(place[1], text.startswith(quota)) for place, text in listed] for listed in found] == [
        [(0, True), (0, False)],
        [(0, False)],
        [(1, True), (1, False)],
        [(0, True), (0, False)],
        [],
    ]


def test_members_beyond_the_group_minima_count_with_the_smallest_size() -> None:
    large = {**needs(cpu=4), "replicas": 4, "min_available": 1}
    small = {**needs(cpu=1, licence=1), "replicas": 4, "min_available": 0}
    job = gang(large, small, min_available=4)  # one of the large, three of the small
    assert refusals(job, quotas=[user(resources={CPU: 7000})]) == {}
    assert refusals(job, quotas=[user(resources={CPU: 6000})]) == {
        "min_available": "quota of user ann: 0 cores used + 7 cores requested > 6 cores allowed"
    }
    assert refusals(job, tokens={"licence": 1}) == {}  # four of the large need none


def test_token_and_quota_faults_name_the_exceeding_group() -> None:
    groups = {"groups": [{"name": "x"}, {"name": "y", **needs(cpu=3, licence=2)}]}
    limits = user(resources={CPU: 2000})
    assert list(refusals(groups, tokens={"licence": 1}, quotas=[limits])) == [
        "groups[1].resources.licence",
        "groups[1].resources.cpu",
    ]


def test_gang_fault_names_the_field_that_sets_its_size() -> None:
    one, four = {**needs(cpu=1)}, {**needs(cpu=1), "replicas": 4}
    few = [user(running_tasks=2)]
    assert list(refusals(gang(one, four), quotas=few)) == ["groups[1].replicas"]
    three = {**four, "min_available": 3}
    assert list(refusals(gang(one, three), quotas=few)) == ["groups[1].min_available"]
    assert list(refusals(gang(one, three, min_available=5), quotas=few)) == ["min_available"]


def test_next_larger_members_count_once_the_smallest_are_used_up() -> None:
    small = {**needs(cpu=1), "replicas": 2, "min_available": 1}
    large = {**needs(cpu=4), "replicas": 2, "min_available": 0}
    job = gang(small, large, min_available=3)  # both of the small, one of the large
    assert refusals(job, quotas=[user(resources={CPU: 6000})]) == {}
    found = refusals(job, quotas=[user(resources={CPU: 5000})])
    assert "6 cores requested > 5 cores allowed" in found["min_available"]
