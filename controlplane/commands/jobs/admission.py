"""Refuses what is too large to be taken, could never run, or asks too much of hosts; cheaply."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings

from controlplane.domain.callbacks.addresses import refuse_url
from controlplane.domain.hooks.preparing import PreparedJob, name_kind
from controlplane.domain.jobs.host_policy import find_policy_faults
from controlplane.domain.jobs.satisfiability import (
    AdmissionCandidate,
    OfferedPool,
    find_unsatisfiable,
)
from controlplane.domain.jobs.submission import JobsRefused, find_count_faults
from controlplane.domain.scopes import Quota, Scope, ScopeKind
from controlplane.models import Pool
from controlplane.queries.jobs.submission import find_offered_cells, find_straits
from controlplane.queries.placement.quotas import find_limits
from controlplane.spec import Fault, JobSpec


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """One job of a submission, its project and pool found.

    `spec`: as it is to be scheduled, `prepared`: what its kind has made of it, once it was asked.
    """

    position: int
    spec: JobSpec
    body: Mapping[str, Any]
    text: str
    digest: str
    project_id: int
    domain_id: int
    pool: Pool
    prepared: PreparedJob | None = None

    @property
    def changes(self) -> Sequence[Mapping[str, Any]]:
        """What the job's kind set, by group."""
        return () if self.prepared is None else self.prepared.changes

    def name_kind(self, fault: Fault) -> Fault:
        """Add that the kind of the job set the field of the fault, if it did."""
        if self.prepared is None:
            return fault
        return name_kind(fault, self.prepared, is_short=self.is_short)

    @property
    def is_short(self) -> bool:
        """Whether the fields of its one group stand at the top."""
        return "groups" not in self.body


def check_hosts(jobs: Sequence[AdmissionRequest]) -> None:
    """Whether each job may have what it asks of hosts, and call back. Raises JobsRefused."""
    faults = [
        (job.position, fault)
        for job in jobs
        for fault in (
            *_faults_of_hosts(job.spec, job.pool, is_short=job.is_short),
            *_faults_of_callback(job.spec),
        )
    ]
    if faults:
        raise JobsRefused(faults)


def _faults_of_hosts(spec: JobSpec, pool: Pool, *, is_short: bool) -> list[Fault]:
    """What `spec` asks of hosts that `pool` does not allow now."""
    return find_policy_faults(
        spec,
        pool=pool.name,
        allowed_mounts=pool.allowed_mounts,
        privileged_allowed=pool.privileged_allowed,
        is_short=is_short,
    )


def _faults_of_callback(spec: JobSpec) -> list[Fault]:
    """An address that no try would be made to; what a name stands for is seen at each try."""
    allowed = settings.CELLRUN.callback_allowed_networks
    why = refuse_url(spec.callback.url, allowed) if spec.callback.url else None
    if why is None:
        return []
    return [Fault("callback.url", f"{why}; CELLRUN_CALLBACK_ALLOWED_NETWORKS does not allow it")]


def check_sizes(jobs: Sequence[AdmissionRequest], *, owner_id: int, now: datetime) -> None:
    """Check that each of the jobs could be placed one day, by cells, tokens and quotas.

    One statement, if no cell is too small for any task and no quota applies. Raise JobsRefused.
    """
    if not jobs:
        return
    faults = [
        (job.position, fault)
        for job in jobs
        for fault in find_count_faults(
            job.spec, is_short=job.is_short, max_tasks=settings.CELLRUN.max_tasks_per_job
        )
    ]
    judged = [job for job in jobs if not job.spec.allow_unsatisfiable]
    if judged:
        faults += _find_unsatisfiable(judged, owner_id, now)
    if faults:
        raise JobsRefused(sorted(faults, key=lambda item: item[0]))


def _find_unsatisfiable(
    jobs: Sequence[AdmissionRequest], owner_id: int, now: datetime
) -> list[tuple[int, Fault]]:
    straits = find_straits(
        (shape for job in jobs for shape in _shapes_of(job)),
        owner_id,
        ((job.project_id, job.domain_id) for job in jobs),
    )
    quotas = _find_quotas(jobs, owner_id) if straits.has_quotas else {}
    cells = find_offered_cells(straits.pool_ids) if straits.pool_ids else {}
    found: list[tuple[int, Fault]] = []
    for pool in {job.pool.pk: job.pool for job in jobs}.values():
        if pool.pk not in cells and not pool.tokens and not quotas:
            continue
        offered = OfferedPool(pool.name, now, cells.get(pool.pk, ()), pool.tokens, pool.validators)
        candidates = [
            AdmissionCandidate(
                job.position,
                job.spec,
                job.is_short,
                [quotas[scope] for scope in _scopes_of(job, owner_id) if scope in quotas],
            )
            for job in jobs
            if job.pool.pk == pool.pk
        ]
        found += find_unsatisfiable(candidates, offered)
    return found


def _shapes_of(job: AdmissionRequest) -> Iterable[tuple[int, str, str, str, str]]:
    for group in job.spec.groups:
        amounts = group.resources.amounts()
        of_cells = {name: n for name, n in amounts.items() if name not in job.pool.tokens}
        tags = json.dumps(job.spec.tags_of(group))
        required = [item.model_dump() for item in job.spec.constraints_of(group) if item.required]
        yield job.pool.pk, group.task_type, json.dumps(of_cells), tags, json.dumps(required)


def _scopes_of(job: AdmissionRequest, owner_id: int) -> tuple[Scope, ...]:
    return (
        Scope(ScopeKind.USER, owner_id),
        Scope(ScopeKind.PROJECT, job.project_id),
        Scope(ScopeKind.DOMAIN, job.domain_id),
    )


def _find_quotas(jobs: Sequence[AdmissionRequest], owner_id: int) -> dict[Scope, Quota]:
    """The quotas of all that submit, as if nothing of them were used."""
    scopes = {scope for job in jobs for scope in _scopes_of(job, owner_id)}
    return {
        limited.scope: Quota(limited.scope, limited.name, limited.limits)
        for limited in find_limits(scopes)
    }
