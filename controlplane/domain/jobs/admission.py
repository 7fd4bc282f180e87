"""Admission: decide from loaded facts which submitted jobs may be inserted; pure.

Submission, dry run, one-off tasks and reruns share `judge`. It runs its checks in order, and raises
the faults of all jobs after the first check that finds any.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from controlplane.contract.addresses import Network
from controlplane.contract.images import DOCKER_HUB, registry_of
from controlplane.domain.callbacks.addresses import refuse_url
from controlplane.domain.hooks.interface import HookSource, HookUnavailable, UnknownKind
from controlplane.domain.hooks.preparing import Changes, name_kind, prepare_job
from controlplane.domain.jobs.bands import LimitedScope, refuse_band
from controlplane.domain.jobs.host_policy import find_policy_faults
from controlplane.domain.jobs.pool_limits import find_limit_faults, limit_defaults
from controlplane.domain.jobs.satisfiability import HINT, AdmissionPool, find_unsatisfiable
from controlplane.domain.jobs.stored_bytes import LimitedStorage
from controlplane.domain.jobs.submission import (
    GuidTaken,
    JobsRefused,
    NameTaken,
    PlannedJob,
    digest_of,
    plan_groups,
)
from controlplane.domain.scopes import Quota, Scope, scopes_of
from controlplane.spec import Fault, JobSpec, TaskGroupSpec
from controlplane.spec.faults import Finding
from controlplane.spec.parsing import field_path


@dataclass(frozen=True, slots=True)
class ExistingJob:
    """An existing job with a guid."""

    job_id: int
    spec_digest: str


@dataclass(frozen=True, slots=True)
class SubmissionFacts:
    """The facts for the admission of jobs that `owner_id` submits at `now`.

    `pools`: by name. `projects`: (project id, domain id) by (domain, project). `archived`: ids of
    archived ones. `jobs`: by (project id, guid). `storage`: by project id, if it is limited.
    `secrets`: by (project id, name) the registry of the login in the value, "" without one, None if
    there is no such secret.
    """

    owner_id: int
    now: datetime
    pools: Mapping[str, AdmissionPool] = field(default_factory=dict)
    projects: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    archived: frozenset[int] = frozenset()
    jobs: Mapping[tuple[int, str], ExistingJob] = field(default_factory=dict)
    limits: Mapping[Scope, LimitedScope] = field(default_factory=dict)
    storage: Mapping[int, LimitedStorage] = field(default_factory=dict)
    secrets: Mapping[tuple[int, str], str | None] = field(default_factory=dict)
    max_tasks_per_job: int = 0
    callback_networks: Sequence[Network] = ()


@dataclass(frozen=True, slots=True)
class AdmissionCandidate:
    """A submitted job with its project and pool. `changes`: fields that its kind set, by group.

    `text`, `digest`: of its document, as returned by `digest_of`.
    """

    position: int
    spec: JobSpec
    is_short: bool
    project_id: int
    domain_id: int
    pool: AdmissionPool
    text: str = ""
    digest: str = ""
    changes: Sequence[Changes] = ()


ARCHIVED = "the project is archived: it accepts no new jobs"

CandidateFinding = tuple[AdmissionCandidate, Finding]
Check = Callable[[Sequence[AdmissionCandidate], SubmissionFacts], Iterable[CandidateFinding]]


@dataclass(frozen=True, slots=True)
class Admission:
    """The jobs of a submission: `planned` ones are inserted.

    `existing`: by position, the id of the job that exists already. `repeats`: by position, the
    position of the equal job before it.
    """

    existing: dict[int, int]
    repeats: dict[int, int]
    planned: list[PlannedJob]


def admit(
    specs: Sequence[JobSpec],
    bodies: Sequence[Mapping[str, Any]],
    facts: SubmissionFacts,
    hooks: HookSource,
) -> Admission:
    """Admit the jobs `specs`, submitted as `bodies`. Raise JobsRefused, GuidTaken."""
    jobs = _identify(specs, bodies, facts)
    existing = find_existing(jobs, facts.jobs)
    repeats = _find_repeats([job for job in jobs if job.position not in existing])
    new = [job for job in jobs if job.position not in existing and job.position not in repeats]
    return Admission(existing, repeats, judge(new, facts, hooks))


def _identify(
    specs: Sequence[JobSpec], bodies: Sequence[Mapping[str, Any]], facts: SubmissionFacts
) -> list[AdmissionCandidate]:
    jobs: list[AdmissionCandidate] = []
    faults: list[tuple[int, Fault]] = []
    for position, (spec, body) in enumerate(zip(specs, bodies, strict=True)):
        pool, project = facts.pools.get(spec.pool), facts.projects.get((spec.domain, spec.project))
        if pool is None:
            faults.append((position, Fault("pool", f"there is no pool {spec.pool}")))
        if project is None:
            faults.append((position, unknown_project(spec.domain, spec.project)))
        elif project[0] in facts.archived:
            faults.append((position, Fault("project", ARCHIVED)))
        if pool is not None and project is not None:
            is_short = "groups" not in body
            digest = digest_of(body)
            jobs.append(AdmissionCandidate(position, spec, is_short, *project, pool, *digest))
    if faults:
        raise JobsRefused(faults)
    return jobs


def unknown_project(domain: str, project: str) -> Fault:
    """Return the fault of a job that names a project which does not exist for its submitter."""
    text = f"there is no project {domain}/{project}; `cellrun project list` lists your projects"
    return Fault("project", text)


def find_existing(
    jobs: Iterable[AdmissionCandidate | PlannedJob], by_guid: Mapping[tuple[int, str], ExistingJob]
) -> dict[int, int]:
    """Return the ids of jobs that exist already, by position. Raise GuidTaken.

    A job exists if a job with its guid was submitted with the same body.
    """
    existing: dict[int, int] = {}
    for job in jobs:
        other = by_guid.get((job.project_id, job.spec.guid)) if job.spec.guid is not None else None
        if other is None:
            continue
        if other.spec_digest != job.digest:
            raise GuidTaken(job.position, str(job.spec.guid), other.job_id)
        existing[job.position] = other.job_id
    return existing


def _find_repeats(jobs: Sequence[AdmissionCandidate]) -> dict[int, int]:
    """Return jobs with the guid of an earlier, equal job. Raise GuidTaken if the two differ."""
    first: dict[tuple[int, str], AdmissionCandidate] = {}
    repeats: dict[int, int] = {}
    for job in jobs:
        if job.spec.guid is None:
            continue
        other = first.setdefault((job.project_id, job.spec.guid), job)
        if other.digest != job.digest:
            raise GuidTaken(job.position, job.spec.guid, None)
        if other is not job:
            repeats[job.position] = other.position
    return repeats


# ------------------------------------------------------------------------------------ checks


def check_access_and_callback(
    jobs: Sequence[AdmissionCandidate], facts: SubmissionFacts
) -> Iterator[CandidateFinding]:
    """Yield host access that the policy of the pool does not allow, and callbacks to such hosts.

    A callback URL with a host name is checked at each delivery.
    """
    for job in jobs:
        for finding in find_policy_faults(
            job.spec,
            pool=job.pool.name,
            allowed_mounts=job.pool.allowed_mounts,
            privileged_allowed=job.pool.privileged_allowed,
            allowed_capabilities=job.pool.allowed_capabilities,
        ):
            yield job, finding
        url = job.spec.callback.url
        reason = refuse_url(url, facts.callback_networks) if url else None
        if reason is not None:
            text = f"{reason}; CELLRUN_CALLBACK_ALLOWED_NETWORKS does not allow it"
            yield job, (("callback", "url"), text)


def check_bands(
    jobs: Sequence[AdmissionCandidate], facts: SubmissionFacts
) -> Iterator[CandidateFinding]:
    """Yield bands that the user, the project or the domain may not use."""
    limits = _find_limits(jobs, facts)
    for job in jobs:
        if text := refuse_band(job.spec.band, limits[job.project_id]):
            yield job, (("band",), text)


def check_pool_limits(
    jobs: Sequence[AdmissionCandidate], facts: SubmissionFacts
) -> Iterator[CandidateFinding]:
    """Yield values that exceed a limit of the pool."""
    for job in jobs:
        for finding in find_limit_faults(job.spec, job.pool.job_limits, pool=job.pool.name):
            yield job, finding


def check_sizes(
    jobs: Sequence[AdmissionCandidate], facts: SubmissionFacts
) -> Iterator[CandidateFinding]:
    """Yield jobs that have too many tasks, or exceed all cells, the tokens or a quota."""
    unsatisfiable: dict[int, list[Finding]] = {}
    limits = _find_limits(jobs, facts)
    quotas = {project_id: _quotas_of(listed) for project_id, listed in limits.items()}
    for pool in {job.pool.pool_id: job.pool for job in jobs}.values():
        pool_jobs = [job for job in jobs if job.pool.pool_id == pool.pool_id]
        specs = [(job.spec, quotas[job.project_id]) for job in pool_jobs]
        if not pool.cells and not pool.tokens and not any(listed for _, listed in specs):
            continue
        findings = find_unsatisfiable(specs, pool, now=facts.now)
        unsatisfiable |= {
            job.position: job_findings
            for job, job_findings in zip(pool_jobs, findings, strict=True)
        }
    for job in jobs:
        count, limit = job.spec.total_replicas(), facts.max_tasks_per_job
        if count > limit:
            groups = job.spec.groups
            largest = max(range(len(groups)), key=lambda n: groups[n].replicas)
            text = f"{count} tasks are more than the {limit} that a job may have"
            yield job, (("groups", largest, "replicas"), text)
        for finding in unsatisfiable.get(job.position, ()):
            yield job, finding


def check_changed_sizes(
    jobs: Sequence[AdmissionCandidate], facts: SubmissionFacts
) -> Iterator[CandidateFinding]:
    """Yield the faults of `check_sizes` for jobs with a field that the kind set.

    Submitted sizes were checked by the submission. The hint is omitted, because a rerun cannot set
    `allow_unsatisfiable`.
    """
    for job, (place, text) in check_sizes([job for job in jobs if any(job.changes)], facts):
        yield job, (place, text.removesuffix(HINT))


def check_storage(
    jobs: Sequence[AdmissionCandidate], facts: SubmissionFacts
) -> Iterator[CandidateFinding]:
    """Yield jobs of projects that have used up their limit, and inputs that would exceed it.

    The output of every task is stored, so no job fits above the limit.
    """
    used = {project_id: storage.used for project_id, storage in facts.storage.items()}
    for job in jobs:
        if job.project_id not in used:
            continue
        storage = replace(facts.storage[job.project_id], used=used[job.project_id])
        if storage.is_used_up:
            yield job, (("project",), storage.refuse(0))
            continue
        contents = {
            item.content: number
            for number, group in enumerate(job.spec.groups)
            for item in group.inputs
            if item.content is not None
        }
        size = sum(len(content.encode()) for content in contents)
        if size > storage.free:
            number = max(contents.values())
            yield job, (("groups", number, "inputs"), storage.refuse(size))
        used[job.project_id] += size


def _quotas_of(limits: Sequence[LimitedScope]) -> list[Quota]:
    return [
        Quota(item.scope, item.name, item.limits, is_default=item.is_default)
        for item in limits
        if item.limits.matter_to_placement
    ]


def _find_limits(
    jobs: Sequence[AdmissionCandidate], facts: SubmissionFacts
) -> dict[int, list[LimitedScope]]:
    """Return the limits that apply to the jobs of each project, by its id."""
    found = {}
    for project_id, domain_id in {(job.project_id, job.domain_id) for job in jobs}:
        scopes = scopes_of(facts.owner_id, project_id, domain_id)
        found[project_id] = [facts.limits[scope] for scope in scopes if scope in facts.limits]
    return found


def check_secrets(
    jobs: Sequence[AdmissionCandidate], facts: SubmissionFacts
) -> Iterator[CandidateFinding]:
    """Yield secrets that the job's project does not have, and logins to another registry.

    With `allow_unsatisfiable` nothing is checked: the secret may be written later. The cell checks
    again, and sends a login only to its registry.
    """
    for job in jobs:
        if job.spec.allow_unsatisfiable:
            continue
        for place, name in secrets_of(job.spec):
            if facts.secrets.get((job.project_id, name), "") is None:
                project = f"{job.spec.domain}/{job.spec.project}"
                text = (
                    f"the project {project} has no secret {name}:"
                    " a manager of the project must write it"
                )
                yield job, (place, text)
        for number, group in enumerate(job.spec.groups):
            server = facts.secrets.get((job.project_id, group.registry_secret or ""))
            text = "" if server is None else _refuse_login(group, server)
            if text:
                yield job, (("groups", number, "registry_secret"), text)


def _refuse_login(group: TaskGroupSpec, server: str) -> str:
    """Return why the group's registry secret is not for its image; empty if it is.

    `server`: empty for a value that is no login, or that an earlier version stored.
    """
    image, name = group.image or "", group.registry_secret
    registry = registry_of(image)
    if registry == (server or DOCKER_HUB):
        return ""
    if not server:
        return (
            f"the secret {name} has no server, so it is a login to {DOCKER_HUB} only, but {image}"
            f" is an image of {registry}: write the secret again, as a login to {registry}"
        )
    return f"the secret {name} is a login to {server}, but {image} is an image of {registry}"


def secrets_of(spec: JobSpec) -> Iterator[Finding]:
    """Yield the place and the name of each secret that the job uses."""
    for number, group in enumerate(spec.groups):
        for position, secret in enumerate(group.secrets):
            yield ("groups", number, "secrets", position, "name"), secret.name
        if group.registry_secret is not None:
            yield ("groups", number, "registry_secret"), group.registry_secret


SUBMISSION_CHECKS: Sequence[Check] = (
    check_bands,
    check_access_and_callback,
    check_pool_limits,
    check_sizes,
    check_storage,
    check_secrets,
)
RERUN_CHECKS: Sequence[Check] = (
    check_bands,
    check_access_and_callback,
    check_pool_limits,
    check_changed_sizes,
    check_storage,
    check_secrets,
)
"""Limits, the pool, secrets and the hook may have changed since the submission."""


# ------------------------------------------------------------------------------------ decision


def judge(
    jobs: Sequence[AdmissionCandidate],
    facts: SubmissionFacts,
    hooks: HookSource,
    *,
    checks: Sequence[Check] = SUBMISSION_CHECKS,
) -> list[PlannedJob]:
    """Prepare the jobs by the hooks of their kinds, check and plan them. Raise JobsRefused."""
    jobs = _prepare(jobs, hooks)
    for check in checks:
        _refuse(
            (job, name_kind(finding, job.spec, job.changes)) for job, finding in check(jobs, facts)
        )
    return [
        PlannedJob(
            position=job.position,
            spec=job.spec,
            is_short=job.is_short,
            text=job.text,
            digest=job.digest,
            project_id=job.project_id,
            pool_id=job.pool.pool_id,
            owner_id=facts.owner_id,
            min_available=job.spec.minimum(),
            max_task_failures=job.spec.tolerated_failures(),
            groups=plan_groups(
                job.spec,
                now=facts.now,
                changes=job.changes,
                default_disk_mib=job.pool.job_limits.default_disk_mib,
            ),
        )
        for job in jobs
    ]


def _prepare(jobs: Sequence[AdmissionCandidate], hooks: HookSource) -> list[AdmissionCandidate]:
    prepared: list[AdmissionCandidate] = []
    findings: list[CandidateFinding] = []
    for job in jobs:
        try:
            hook = hooks.find(job.spec.kind)
        except UnknownKind as error:
            findings.append((job, (("kind",), str(error))))
            continue
        except HookUnavailable as error:
            findings.append((job, (("kind",), str(error))))
            break
        result = prepare_job(job.spec, hook)
        findings += [(job, finding) for finding in result.findings]
        spec = limit_defaults(result.spec, job.pool.job_limits)
        is_same = spec is job.spec and not any(result.changes)
        prepared.append(job if is_same else replace(job, spec=spec, changes=result.changes))
    _refuse(findings)
    return prepared


def _refuse(findings: Iterable[CandidateFinding]) -> None:
    faults = [
        (job.position, Fault(field_path(place, is_short=job.is_short), text))
        for job, (place, text) in findings
    ]
    if faults:
        raise JobsRefused(faults)


def judge_names(
    jobs: Sequence[PlannedJob],
    unfinished: Mapping[tuple[int, str], Sequence[int]],
    settling: Mapping[tuple[int, str], Sequence[int]],
) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Apply `existing_job_policy`: return by position the kept job, and the replaced jobs.

    `unfinished`, `settling`: jobs of the owner by (project id, name), newest last. Settling jobs,
    which have ended but may still hold containers, are replaced too. Raise JobsRefused, NameTaken.
    """
    first: dict[tuple[int, str], int] = {}
    for job in jobs:
        first.setdefault((job.project_id, job.spec.name), job.position)
    existing: dict[int, int] = {}
    replaced: dict[int, list[int]] = {}
    for job in jobs:
        key, policy = (job.project_id, job.spec.name), job.spec.existing_job_policy
        if policy is None:
            continue
        if first[key] != job.position:
            text = f"{job.spec.name} is the name of another job of this submission, too"
            raise JobsRefused([(job.position, Fault("name", text))])
        same_name = unfinished.get(key, ())
        if policy == "replace":
            replaced[job.position] = [*same_name, *settling.get(key, ())]
        elif same_name and policy == "error":
            raise NameTaken(job.position, job.spec.name, same_name[-1])
        elif same_name:
            existing[job.position] = same_name[-1]
    return existing, replaced
