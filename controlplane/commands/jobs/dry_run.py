"""Dry run: forecast where a job would be placed now, or why it would wait or be refused.

The job is validated like a submission and placed like a placement pass would place it. Nothing is
locked or written, so the forecast may be outdated a moment later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from controlplane import clock
from controlplane.commands.hooks.registry import PreparationHooks
from controlplane.commands.jobs.cap import check_cap
from controlplane.commands.jobs.concurrency import resolve_keys
from controlplane.commands.jobs.insert import shape_key_of
from controlplane.commands.jobs.links import forecast_links
from controlplane.commands.jobs.submit import check_store, resolve_names
from controlplane.domain.jobs.admission import admit
from controlplane.domain.jobs.satisfiability import shape_of
from controlplane.domain.jobs.submission import (
    PlannedGroup,
    PlannedJob,
    concurrency_of,
    waits_for_jobs,
)
from controlplane.domain.placement import forecast
from controlplane.domain.placement.cycle.place import place
from controlplane.domain.placement.cycle.plan import PlacementPlan
from controlplane.domain.placement.cycle.plugin_guard import Faults
from controlplane.domain.placement.cycle.prefilter import screen
from controlplane.domain.placement.forecast import CandidateGroup, ForecastJob, GroupForecast
from controlplane.domain.placement.model.snapshot import PassFacts, PoolSnapshot, ShapeFacts
from controlplane.domain.placement.preemption.make_room import make_room, wants_room
from controlplane.domain.state.growth import GrowthRoom, foresee
from controlplane.models import Pool
from controlplane.queries.holds import load_project_holds
from controlplane.queries.jobs.growth_room import load_room
from controlplane.queries.jobs.submission import load_submission_facts
from controlplane.queries.placement.pool_plugins import resolve
from controlplane.queries.placement.running_attempts import load_held
from controlplane.queries.placement.snapshot import (
    load_pass_facts,
    load_snapshot,
    load_waiting_shapes,
    policy_of,
)
from controlplane.queries.sql import execute
from controlplane.queries.views.amounts import shown_amounts
from controlplane.queries.views.tasks import name_tasks
from controlplane.spec import JobSpec

# The time limit of a placement pass.
SECONDS = 2.0
# Retries whose requests are shown.
MAX_FORESEEN = 16
# All tasks that wait before the job are placed first, whatever their number.
_NO_LIMIT = 1 << 40


@dataclass(frozen=True, slots=True)
class RuleGrowth:
    """The requests of the retries of a group's task if one rule decides on all of them.

    `rule`: its number, from 1. `refusal`: why there is no further retry; empty: nothing bounds it.
    """

    group: str
    rule: int
    requests: Sequence[Mapping[str, float]]
    refusal: str


@dataclass(frozen=True, slots=True)
class DryRun:
    """The forecast of a submission.

    `existing_job`: the job that would be returned instead of a new one. `evicts`: {"task", "name",
    "job", "cell"} of each task that would be evicted. `is_complete`: False if more tasks wait
    before the job than were considered. `growth`: of the rules that increase requests.
    """

    pool: str
    existing_job: int | None = None
    groups: Sequence[GroupForecast] = ()
    evicts: Sequence[Mapping[str, Any]] = ()
    is_complete: bool = True
    growth: Sequence[RuleGrowth] = ()


def dry_run(*, spec: JobSpec, body: Mapping[str, Any], owner: User, now: datetime) -> DryRun:
    """Return the forecast of submitting the job now. Raise what `submit_jobs` would raise."""
    with transaction.atomic():
        # PostgreSQL rejects any write, also one that is added to the code below by mistake.
        execute("SET TRANSACTION READ ONLY")
        return _forecast(spec, body, owner, now)


def _forecast(spec: JobSpec, body: Mapping[str, Any], owner: User, now: datetime) -> DryRun:
    facts = load_submission_facts([spec], owner_id=owner.pk, now=now)
    admission = admit([spec], [body], facts, PreparationHooks())
    if admission.existing:
        return DryRun(spec.pool, existing_job=admission.existing[0])
    [job] = admission.planned
    check_store()
    check_cap(owner.pk, [job], is_binding=False)
    existing, replaced = resolve_names(owner.pk, [job])
    if existing:
        return DryRun(spec.pool, existing_job=existing[0])
    resolve_keys([job], {job_id for ids in replaced.values() for job_id in ids})
    job.job_id = forecast.JOB_ID
    waits_for = forecast_links(job, replaced.get(0, ()))
    _, domain_id = facts.projects[spec.domain, spec.project]
    candidate = _candidate(job, domain_id, waits_for, now)
    holds = load_project_holds([job.project_id]).values()
    pool = Pool.objects.get(pk=job.pool_id)
    found = _place(pool, replace(candidate, holds=[*holds]), now)
    return replace(found, growth=_growth(job, candidate, pool))


def _growth(job: PlannedJob, candidate: ForecastJob, pool: Pool) -> list[RuleGrowth]:
    """Return the growth by each rule that increases requests; most jobs have none."""
    found = []
    for group, entry in zip(job.groups, candidate.groups, strict=True):
        rules = [(n, rule) for n, rule in enumerate(group.retry_rules, 1) if rule.growth]
        if not rules:
            continue
        room = load_room(entry.shape, pool)
        if job.spec.allow_unsatisfiable:
            room = GrowthRoom(pool.name)
        for number, rule in rules:
            retries = min(group.retries[0], MAX_FORESEEN)
            requests, refusal = foresee(rule.growth, group.resources, room, retries=retries)
            shown = [shown_amounts(request) for request in requests]
            found.append(RuleGrowth(group.name, number, shown, refusal))
    return found


def _candidate(
    job: PlannedJob, domain_id: int, waits_for: Sequence[Mapping[str, Any]], now: datetime
) -> ForecastJob:
    """Return the job as placement would read it after its insertion."""
    spec = job.spec
    if waits_for_jobs(spec) and not waits_for:
        # All its dependencies are met: convergence would make it startable at once.
        startable = max(now, spec.start_after or now)
        starts = [None if group.depends_on else startable for group in job.groups]
    else:
        starts = [group.startable_at for group in job.groups]
    return ForecastJob(
        groups=[
            CandidateGroup(
                group_id=-1 - group.position,
                name=group.name,
                tasks=len(group.indices),
                shape=_shape(job, group, domain_id),
                min_available=group.min_available,
                startable_at=startable_at,
                depends_on=group.depends_on,
                timeout_seconds=group.timeout_seconds,
            )
            for group, startable_at in zip(job.groups, starts, strict=True)
        ],
        min_available=job.min_available,
        group_by=spec.group_by or "",
        is_child=spec.parent is not None,
        start_after=spec.start_after,
        waits_for=waits_for,
    )


def _shape(job: PlannedJob, group: PlannedGroup, domain_id: int) -> ShapeFacts:
    return replace(
        shape_of(job.spec, job.spec.groups[group.position]),
        shape_id=shape_key_of(job, group).number(),
        owner_id=job.owner_id,
        project_id=job.project_id,
        domain_id=domain_id,
        count=0,
        allow_unsatisfiable=job.spec.allow_unsatisfiable,
        concurrency=concurrency_of(job.spec, job.project_id),
    )


def _place(pool: Pool, candidate: ForecastJob, now: datetime) -> DryRun:
    """Place the job in one pass over the pool, after all tasks that wait there."""
    policy = policy_of(pool)
    plugins = resolve(policy, Faults())
    waiting = [found.shapes for found in load_waiting_shapes(now) if found.pool_id == pool.pk]
    shapes = forecast.add_shapes([shape for found in waiting for shape in found], candidate)
    by_owner = plugins.sequencer.uses_shares
    snapshot = load_snapshot(pool.pk, pool.name, policy, shapes, now=now, with_owners=by_owner)
    screened = screen(snapshot, plugins)
    facts = load_pass_facts(snapshot, screened, by_owner=by_owner)
    facts = forecast.add_rows(facts, candidate, snapshot, screened)
    ends_at = clock.monotonic() + SECONDS
    plan = place(
        snapshot, facts, plugins, limit=_NO_LIMIT, is_late=lambda: clock.monotonic() > ends_at
    )
    reserved, evicts = _evictions(snapshot, plan, facts, candidate)
    return DryRun(
        pool=pool.name,
        groups=forecast.read_off(candidate, snapshot, plugins, screened, plan, reserved),
        evicts=evicts,
        is_complete=plan.complete,
    )


def _evictions(
    snapshot: PoolSnapshot, plan: PlacementPlan, facts: PassFacts, candidate: ForecastJob
) -> tuple[dict[int, dict[str, int]], list[dict[str, Any]]]:
    """Return tasks per cell that evictions would make room for, by group id, and the victims."""
    own = {group.group_id for group in candidate.groups}
    waiting, names = facts.waiting, {cell.cell_id: cell.name for cell in snapshot.cells}
    wanting = [waiting.group_ids[item.row] for item in wants_room(plan)]
    if not snapshot.policy.preemption or not own.intersection(wanting):
        return {}, []
    held = load_held(list(names))
    evictions = make_room(snapshot, plan, waiting, held.running, held.leaving, held.leaving_scopes)
    reserved: dict[int, dict[str, int]] = {}
    victims = list[int]()
    for eviction in evictions:
        if eviction.need.group_id not in own:
            continue
        for group_id, cell_id, count in eviction.places():
            places = reserved.setdefault(group_id, {})
            places[names[cell_id]] = places.get(names[cell_id], 0) + count
        victims += eviction.victims
    return reserved, name_tasks(victims)
