"""The decision about submitted jobs by facts alone: order of the faults, kinds, names, reruns."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest

from controlplane.domain.hooks.built_in import BatchHook
from controlplane.domain.hooks.interface import (
    AttemptEnd,
    GroupTerms,
    Hook,
    HookUnavailable,
    Refusal,
    UnknownKind,
)
from controlplane.domain.jobs.admission import (
    RERUN_CHECKS,
    SUBMISSION_CHECKS,
    Admission,
    AdmissionCandidate,
    Check,
    ExistingJob,
    SubmissionFacts,
    admit,
    judge,
    judge_names,
)
from controlplane.domain.jobs.bands import LimitedScope
from controlplane.domain.jobs.satisfiability import AdmissionPool
from controlplane.domain.jobs.submission import (
    GuidTaken,
    JobsRefused,
    NameTaken,
    PlannedJob,
    digest_of,
)
from controlplane.domain.scopes import Scope, ScopeKind, ScopeLimits
from controlplane.domain.state.states import Band
from controlplane.domain.state.transitions import Event
from controlplane.spec import parse_job
from tests.harness.domain.facts import NOW

JOB: dict[str, Any] = {"name": "a", "image": "busybox"}
YOURS = "`cellrun project list` lists your projects"
GUIDED = {**JOB, "guid": "g"}
MOUNT = {"source": "/data", "target": "/in"}
POOL = AdmissionPool(3, "default")
FACTS = SubmissionFacts(
    owner_id=1,
    now=NOW,
    pools={"default": POOL},
    projects={("default", "default"): (7, 8)},
    max_tasks_per_job=10,
)


class Mounting:
    """A hook that adds a mount to each group."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        return replace(terms, mounts=(MOUNT,))

    def on_end(self, end: AttemptEnd) -> Event:
        return end.event


class Refusing(Mounting):
    def prepare(self, terms: GroupTerms) -> GroupTerms:
        raise Refusal("image", "is not for this kind")


class Hooks:
    """The hooks of this test; after `calls` look-ups no time is left."""

    def __init__(self, calls: int = 100) -> None:
        self.calls = calls

    def find(self, kind: str) -> Hook:
        hooks: dict[str, Hook] = {
            "batch": BatchHook(),
            "mounting": Mounting(),
            "refusing": Refusing(),
        }
        if kind not in hooks:
            raise UnknownKind(f"there is no kind {kind}")
        self.calls -= 1
        if self.calls < 0:
            raise HookUnavailable("no time is left")
        return hooks[kind]


def admitted(
    *bodies: dict[str, Any], facts: SubmissionFacts = FACTS, calls: int = 100
) -> Admission:
    return admit([parse_job(body) for body in bodies], bodies, facts, Hooks(calls))


def faults(
    *bodies: dict[str, Any], facts: SubmissionFacts = FACTS, calls: int = 100
) -> list[tuple[int, str, str]]:
    with pytest.raises(JobsRefused) as refused:
        admitted(*bodies, facts=facts, calls=calls)
    return [(position, fault.field, fault.detail) for position, fault in refused.value.faults]


def test_valid_job_is_planned_for_its_owner_project_and_pool() -> None:
    [job] = admitted({**JOB, "replicas": 2, "min_available": 1}).planned
    assert (job.position, job.owner_id, job.project_id, job.pool_id) == (0, 1, 7, 3)
    assert (job.min_available, job.max_task_failures, job.is_short) == (1, 1, True)
    [group] = job.groups
    assert (list(group.indices), group.startable_at) == ([0, 1], NOW)


def test_unknown_pools_and_projects_are_reported_before_other_faults() -> None:
    elsewhere = {**JOB, "pool": "gpu", "project": "other", "kind": "unknown"}
    assert faults({**JOB, "mounts": [MOUNT]}, elsewhere, {**JOB, "domain": "d"}) == [
        (1, "pool", "there is no pool gpu"),
        (1, "project", f"there is no project default/other; {YOURS}"),
        (2, "project", f"there is no project d/default; {YOURS}"),
    ]


def test_existing_guid_with_the_same_body_returns_the_existing_job() -> None:
    body = {**GUIDED, "kind": "unknown"}
    _, digest = digest_of(body)
    known = replace(FACTS, jobs={(7, "g"): ExistingJob(42, digest)})
    found = admitted(JOB, body, body, facts=known)
    assert found.existing == {1: 42, 2: 42}
    assert [job.position for job in found.planned] == [0]
    other = replace(FACTS, jobs={(7, "g"): ExistingJob(42, "another")})
    with pytest.raises(GuidTaken, match="guid g belongs to job 42") as taken:
        admitted(JOB, {**body, "pool": "default"}, facts=other)
    assert taken.value.position == 1


def test_equal_jobs_of_one_submission_are_planned_once() -> None:
    found = admitted(GUIDED, JOB, GUIDED)
    assert (found.repeats, [job.position for job in found.planned]) == ({2: 0}, [0, 1])
    with pytest.raises(GuidTaken, match="another job of the same submission") as taken:
        admitted(GUIDED, {**GUIDED, "replicas": 2})
    assert taken.value.position == 1


def test_hooks_of_all_jobs_run_before_other_checks() -> None:
    refused = {**JOB, "kind": "refusing"}
    groups = {"name": "b", "kind": "refusing", "groups": [{"name": "x", "image": "y"}]}
    assert faults({**JOB, "kind": "new"}, {**JOB, "replicas": 11}, refused, groups) == [
        (0, "kind", "there is no kind new"),
        (2, "image", "is not for this kind"),
        (3, "groups[0].image", "is not for this kind"),
    ]


def test_no_hook_is_called_after_the_time_limit() -> None:
    refused = {**JOB, "kind": "refusing"}
    assert faults(refused, JOB, {**JOB, "kind": "new"}, calls=1) == [
        (0, "image", "is not for this kind"),
        (1, "kind", "no time is left"),
    ]


def test_host_and_callback_faults_come_before_sizes_and_secrets() -> None:
    secret = {"secrets": [{"name": "s", "env": "S"}]}
    facts = replace(FACTS, secrets={(7, "s"): None})
    large, mounting = {**JOB, **secret, "replicas": 11}, {**JOB, "mounts": [MOUNT]}
    local = {**JOB, "callback": {"url": "http://127.0.0.1/"}}
    places = [(at, field) for at, field, _ in faults(large, mounting, local, facts=facts)]
    assert places == [(1, "mounts[0].source"), (2, "callback.url")]
    allowed = replace(facts, callback_networks=[ip_network("127.0.0.0/8")])
    text = "11 tasks are more than the 10 that a job may have"
    assert faults({**JOB, **secret}, large, local, facts=allowed) == [(1, "replicas", text)]
    text = "the project default/default has no secret s: a manager of the project must write it"
    assert faults(JOB, {**JOB, **secret}, facts=facts) == [(1, "secrets[0].name", text)]
    assert admitted({**JOB, **secret, "allow_unsatisfiable": True}, facts=facts).planned


def test_login_to_another_registry_than_the_image_is_refused() -> None:
    image = "registry.example.com:5000/team/tool:1"
    spec = {**JOB, "image": image, "registry_secret": "hub"}

    def refused(server: str | None, **changes: Any) -> list[tuple[int, str, str]]:
        return faults({**spec, **changes}, facts=replace(FACTS, secrets={(7, "hub"): server}))

    assert refused("docker.io") == [
        (
            0,
            "registry_secret",
            f"the secret hub is a login to docker.io, but {image} is an image of"
            " registry.example.com:5000",
        )
    ]
    [(_, field, detail)] = refused("")
    assert (field, "has no server" in detail) == ("registry_secret", True)
    assert "a login to docker.io only" in detail
    assert refused("registry.example.com"), "another port is another registry"
    assert refused("registry.example.com:5000", image="busybox")
    [(_, _, missing)] = refused(None)
    assert (
        missing
        == "the project default/default has no secret hub: a manager of the project must write it"
    )
    for server, allowed in (
        ("registry.example.com:5000", spec),
        ("docker.io", {**spec, "image": "team/tool"}),
        ("", {**spec, "image": "busybox"}),
        ("docker.io", {**spec, "allow_unsatisfiable": True}),
    ):
        facts = replace(FACTS, secrets={(7, "hub"): server})
        assert admitted(allowed, facts=facts).planned, server


def test_too_many_tasks_are_reported_at_the_largest_group() -> None:
    groups = [{"name": "x", "image": "y", "replicas": 5}, {"name": "z", "image": "y"}]
    spec = {"name": "a", "groups": [groups[0], {**groups[1], "replicas": 6}]}
    [(_, field, _)] = faults({**spec, "allow_unsatisfiable": True})
    assert field == "groups[1].replicas"
    assert admitted({**spec, "groups": groups}).planned


def test_fault_in_a_field_set_by_the_kind_names_the_kind() -> None:
    [(_, field, detail)] = faults({**JOB, "kind": "mounting"})
    assert field == "mounts[0].source"
    assert detail.endswith("(set by kind mounting)")
    assert not faults({**JOB, "mounts": [MOUNT]})[0][2].endswith(")")
    allowing = replace(POOL, allowed_mounts=[{"path": "/data"}])
    facts = replace(FACTS, pools={"default": allowing})
    [job] = admitted({**JOB, "kind": "mounting"}, facts=facts).planned
    assert job.groups[0].prepared == {"mounts": [{**MOUNT, "read_only": True}]}


def limited(scope: Scope, band: Band = Band.PRODUCTION, **limits: Any) -> LimitedScope:
    return LimitedScope(scope, "x", ScopeLimits(**limits), band)


def test_only_the_quotas_of_the_owner_and_its_project_and_domain_apply() -> None:
    def quota(kind: ScopeKind, key: int) -> dict[Scope, LimitedScope]:
        return {Scope(kind, key): limited(Scope(kind, key), resources={"cpu_millis": 100})}

    for kind, key, other in ((ScopeKind.USER, 1, 7), (ScopeKind.PROJECT, 7, 8)):
        [(_, field, detail)] = faults(JOB, facts=replace(FACTS, limits=quota(kind, key)))
        assert (field, f"quota of {kind} x" in detail) == ("resources.cpu", True)
        assert admitted(JOB, facts=replace(FACTS, limits=quota(kind, other))).planned
    assert faults(JOB, facts=replace(FACTS, limits=quota(ScopeKind.DOMAIN, 8)))


@pytest.mark.parametrize("checks", [SUBMISSION_CHECKS, RERUN_CHECKS])
def test_band_must_be_within_the_limits_of_user_project_and_domain(
    checks: Sequence[Check],
) -> None:
    def refusals(band: str, limits: Mapping[ScopeKind, Band]) -> str:
        keys = {ScopeKind.USER: 1, ScopeKind.PROJECT: 7, ScopeKind.DOMAIN: 8}
        scopes = {kind: Scope(kind, key) for kind, key in keys.items()}
        found = {scopes[kind]: limited(scopes[kind], of) for kind, of in limits.items()}
        spec = parse_job({**JOB, "band": band})
        try:
            judge(
                [AdmissionCandidate(0, spec, False, 7, 8, POOL)],
                replace(FACTS, limits=found),
                Hooks(),
                checks=checks,
            )
        except JobsRefused as refused:
            return str(refused)
        return ""

    every = dict.fromkeys(ScopeKind, Band.PRODUCTION)
    for kind in ScopeKind:
        for number, band in enumerate(("production", "interactive", "batch")):
            for limit in Band:
                text = refusals(band, {**every, kind: limit})
                assert bool(text) is (number < limit - 1), (kind, band, limit)
                if text:
                    assert text.startswith(f"band: {band} is too high: {limit.name.lower()} is ")
                    assert f"cellrun quota {kind} x --set highest_band={band}" in text


def test_rerun_checks_permissions_but_not_the_submitted_size() -> None:
    def rerun(body: dict[str, Any], facts: SubmissionFacts = FACTS) -> list[PlannedJob]:
        candidate = AdmissionCandidate(0, parse_job(body), False, 7, 8, POOL)
        return judge([candidate], facts, Hooks(), checks=RERUN_CHECKS)

    [job] = rerun({**JOB, "replicas": 11})
    assert len(job.groups[0].indices) == 11
    with pytest.raises(JobsRefused, match=r"^groups\[0\].mounts\[0\].source: pool default allows"):
        rerun({**JOB, "mounts": [MOUNT]})
    local = {**JOB, "callback": {"url": "http://127.0.0.1/"}}
    with pytest.raises(JobsRefused, match=r"^callback.url: its address is not public"):
        rerun(local)
    assert rerun(local, replace(FACTS, callback_networks=[ip_network("127.0.0.0/8")]))
    secret = {**JOB, "secrets": [{"name": "s", "env": "S"}]}
    with pytest.raises(JobsRefused, match=r"^groups\[0\].secrets\[0\].name: .* no secret s"):
        rerun(secret, replace(FACTS, secrets={(7, "s"): None}))


def test_rerun_checks_the_size_if_the_kind_changed_the_job() -> None:
    scope = Scope(ScopeKind.USER, 1)
    quota = limited(scope, resources={"cpu_millis": 100})
    pool = replace(POOL, allowed_mounts=[{"path": "/data"}])
    candidate = AdmissionCandidate(0, parse_job(JOB), False, 7, 8, pool)
    facts = replace(FACTS, limits={scope: quota})
    assert judge([candidate], facts, Hooks(), checks=RERUN_CHECKS)
    mounting = replace(candidate, spec=parse_job({**JOB, "kind": "mounting"}))
    with pytest.raises(JobsRefused, match=r"^groups\[0\].resources.cpu: ") as refused:
        judge([mounting], facts, Hooks(), checks=RERUN_CHECKS)
    assert "allow_unsatisfiable" not in str(refused.value)


# ------------------------------------------------------------------------------------ names


def named(*policies: str | None, name: str = "a") -> list[PlannedJob]:
    bodies = [{**JOB, "name": name, "existing_job_policy": policy} for policy in policies]
    return admitted(*bodies).planned


def test_existing_job_is_kept_replaced_or_refused_by_policy() -> None:
    there = {(7, "a"): [4, 5]}
    assert judge_names(named("keep"), there, {}) == ({0: 5}, {})
    assert judge_names(named("keep"), {}, {}) == ({}, {})
    assert judge_names(named("replace"), there, {(7, "a"): [3]}) == ({}, {0: [4, 5, 3]})
    assert judge_names(named("replace"), {}, {}) == ({}, {0: []})
    assert judge_names(named(None, None), there, {}) == ({}, {})
    assert judge_names(named("error"), {(8, "a"): [1]}, {}) == ({}, {})
    with pytest.raises(NameTaken, match="job 5, which is named a, has not ended"):
        judge_names(named("error"), there, {})


def test_name_with_a_policy_is_unique_within_a_submission() -> None:
    with pytest.raises(JobsRefused, match="a is the name of another job of this submission"):
        judge_names(named(None, "keep"), {}, {})
    assert judge_names(named("keep", None), {}, {}) == ({}, {})
