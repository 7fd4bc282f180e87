"""Satisfiability: reject jobs that could not be placed even on empty cells.

A job is rejected if it exceeds a limit by itself: a task larger than every cell that may run it,
more tokens than the pool has, or more than a quota allows. A job that additional cells could
satisfy is accepted and waits, such as a gang larger than the pool, or constraints that no cell
meets. The texts are those of placement.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane.domain.jobs.submission import constraints_of
from controlplane.domain.placement.model.capacity_matrix import CapacityMatrix, Mask
from controlplane.domain.placement.model.interfaces import QuotaState, Request, ValidationFailure
from controlplane.domain.placement.model.policy import DEFAULT_VALIDATORS, PoolPolicy
from controlplane.domain.placement.model.snapshot import CellFacts, PoolSnapshot, ShapeFacts
from controlplane.domain.placement.plugins.validators import BUILT_IN
from controlplane.domain.placement.reasons import explain
from controlplane.domain.scopes import Quota
from controlplane.domain.state.states import Band
from controlplane.spec import JobSpec, TaskGroupSpec
from controlplane.spec.faults import Finding, Place
from controlplane.spec.limits import JobLimits

# The validators whose limits can reject a job.
_LIMIT_VALIDATORS = ("user_quota", "project_quota", "domain_quota", "concurrency")
_NAMES_IN_JOBS = {"cpu_millis": "cpu", "memory_mib": "memory", "disk_mib": "disk"}
HINT = " (allow_unsatisfiable: true takes the job anyway)"


@dataclass(frozen=True, slots=True)
class AdmissionPool:
    """A pool and its policy for new jobs.

    `cells`: all cells that ever registered, in any state, checked as if empty. They are not loaded
    if each task is known to fit on one.
    """

    pool_id: int
    name: str
    tokens: Mapping[str, int] = field(default_factory=dict)
    validators: Sequence[str] = DEFAULT_VALIDATORS
    allowed_mounts: Sequence[Mapping[str, Any]] = ()
    privileged_allowed: bool = False
    allowed_capabilities: Sequence[str] = ()
    job_limits: JobLimits = field(default_factory=JobLimits)
    cells: tuple[CellFacts, ...] = ()


def find_unsatisfiable(
    jobs: Sequence[tuple[JobSpec, Sequence[Quota]]], pool: AdmissionPool, *, now: datetime
) -> list[list[Finding]]:
    """Return for each of `jobs` (spec and quotas) the reasons why it can never run in `pool`.

    A job with `allow_unsatisfiable` is accepted.
    """
    shapes = [
        () if spec.allow_unsatisfiable else [shape_of(spec, group) for group in spec.groups]
        for spec, _ in jobs
    ]
    candidates = _PoolCandidates(pool, [shape for listed in shapes for shape in listed], now)
    return [
        list(candidates.check(spec, listed, quotas)) if listed else []
        for (spec, quotas), listed in zip(jobs, shapes, strict=True)
    ]


class _PoolCandidates:
    """A pool, and the shapes of all jobs that are checked together."""

    def __init__(self, pool: AdmissionPool, shapes: Sequence[ShapeFacts], now: datetime) -> None:
        self._pool, self._now = pool, now
        self._matrix = CapacityMatrix(pool.cells, shapes, pool.tokens)
        self._findings: dict[Hashable, list[Finding]] = {}
        self._snapshot = PoolSnapshot(pool.pool_id, pool.name, now, PoolPolicy(), pool.cells, ())

    def check(
        self, spec: JobSpec, shapes: Sequence[ShapeFacts], quotas: Sequence[Quota]
    ) -> Iterator[Finding]:
        """Yield the violations of one job, each once."""
        findings = list(self._check_tasks(shapes, quotas))
        if not findings and spec.coscheduled:
            findings = list(self._check_gang(spec, shapes, quotas))
        for place, text in dict.fromkeys(findings):
            yield place, f"{text}{HINT}"

    # -------------------------------------------------------------------------- one task

    def _check_tasks(
        self, shapes: Sequence[ShapeFacts], quotas: Sequence[Quota]
    ) -> Iterator[Finding]:
        """Yield the violations of a single task of each group; check equal tasks once."""
        for position, shape in enumerate(shapes):
            key = (_identity_of(shape), tuple(map(id, quotas)))
            findings = self._findings.get(key)
            if findings is None:
                findings = self._findings[key] = list(self._check_task(shape, quotas))
            for place, text in findings:
                yield ("groups", position, *place), text

    def _check_task(self, shape: ShapeFacts, quotas: Sequence[Quota]) -> Iterator[Finding]:
        for name, text in self._exceeded_tokens(shape.resources):
            yield ("resources", name), text
        for violation in self._violations(quotas, shape, shape.resources):
            yield _place_of(str(violation.figures["what"])), violation.text
        yield from self._check_cells(shape)

    def _check_cells(self, shape: ShapeFacts) -> Iterator[Finding]:
        usable = self._matrix.usable(shape)
        # If no cell has the task type, labels and tags, one may register later.
        if usable.any() and not self._count_fitting(shape, usable):
            reason = explain.explain_misfit(shape, self._snapshot, self._matrix, usable)
            name = next(iter(reason["shortfall"]))
            yield _place_of(name), str(reason["text"])

    def _count_fitting(self, shape: ShapeFacts, usable: Mask) -> int:
        return int(self._matrix.room_when_empty(self._matrix.vector(shape.resources), usable).sum())

    # -------------------------------------------------------------------------- limits

    def _exceeded_tokens(self, resources: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        for name, amount in sorted(resources.items()):
            limit = self._pool.tokens.get(name)
            if limit is not None and amount > limit:
                yield name, explain.explain_tokens({name: (0, amount, limit)})["text"]

    def _violations(
        self,
        quotas: Sequence[Quota],
        shape: ShapeFacts,
        resources: Mapping[str, int],
        *,
        tasks: int = 1,
    ) -> Iterator[ValidationFailure]:
        """Yield the violations of unused quotas by `tasks` concurrent tasks."""
        unused = [
            QuotaState(
                quota.scope.kind,
                quota.title,
                quota.limits,
                {},
                0,
                0,
                is_default=quota.is_default,
            )
            for quota in quotas
        ]
        now = self._now
        request = Request(shape, tasks, resources, unused, now, now, is_whole=True)
        for name in _LIMIT_VALIDATORS:
            if quotas and name in self._pool.validators:
                yield from BUILT_IN[name]().check(request).violations

    # -------------------------------------------------------------------------- gangs

    def _check_gang(
        self, spec: JobSpec, shapes: Sequence[ShapeFacts], quotas: Sequence[Quota]
    ) -> Iterator[Finding]:
        """Yield the limits that the minima of a gang exceed."""
        gang = _GangMinima(spec, shapes)
        amounts = {name: gang.smallest_amount(name) for shape in shapes for name in shape.resources}
        for _, text in self._exceeded_tokens(amounts):
            yield gang.place, text
        for violation in self._violations(quotas, shapes[0], amounts):
            yield gang.place, violation.text
        for violation in self._violations(quotas, shapes[0], {}, tasks=gang.minimum):
            yield gang.place, violation.text


def shape_of(spec: JobSpec, group: TaskGroupSpec) -> ShapeFacts:
    """Return the shape of the group for placement, independent of its owner."""
    return ShapeFacts(
        shape_id=0,
        band=Band[spec.band.upper()],
        owner_id=0,
        project_id=0,
        domain_id=0,
        count=group.replicas,
        resources=group.resources.amounts(),
        task_type=group.task_type,
        constraints=constraints_of(spec, group),
        placement_tags=tuple(spec.tags_of(group)),
        coscheduled=spec.coscheduled,
    )


def _identity_of(shape: ShapeFacts) -> Hashable:
    """Return what distinguishes the shapes of `shape_of` in one pool."""
    return (
        tuple(shape.resources.items()),
        shape.band,
        shape.count,
        shape.task_type,
        shape.constraints,
        shape.placement_tags,
        shape.coscheduled,
    )


class _GangMinima:
    """The minima of a gang: `minimum` members in all, and at least the minimum of each group."""

    def __init__(self, spec: JobSpec, shapes: Sequence[ShapeFacts]) -> None:
        self.shapes = shapes
        self.minimum = spec.minimum()
        self._minima = spec.minima()
        self._replicas = [group.replicas for group in spec.groups]
        self.place = _place_of_minimum(spec)

    def smallest_amount(self, name: str) -> int:
        """Return the smallest amount of a resource that `minimum` members hold together."""
        total, remaining = 0, self.minimum
        for amount, minimum, _ in self._by_size(name):
            total, remaining = total + amount * minimum, remaining - minimum
        for amount, minimum, replicas in self._by_size(name):
            extra = min(remaining, replicas - minimum)
            total, remaining = total + amount * extra, remaining - extra
        return total

    def _by_size(self, name: str) -> list[tuple[int, int, int]]:
        """Return (amount per task, minimum, replicas) of the groups, sorted by amount."""
        amounts = [shape.resources.get(name, 0) for shape in self.shapes]
        return sorted(zip(amounts, self._minima, self._replicas, strict=True))


def _place_of(limit_name: str) -> Place:
    """Return the field of a group to which the limit `limit_name` applies."""
    if limit_name in ("running_tasks", "running_jobs"):
        return ("replicas",)
    return ("resources", _NAMES_IN_JOBS.get(limit_name, limit_name))


def _place_of_minimum(spec: JobSpec) -> Place:
    """Return the field that determines the minimum of a gang."""
    if spec.min_available is not None:
        return ("min_available",)
    position = max(range(len(spec.groups)), key=spec.minima().__getitem__)
    explicit = spec.groups[position].min_available is not None
    return ("groups", position, "min_available" if explicit else "replicas")
