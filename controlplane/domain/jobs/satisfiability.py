"""Satisfiability: reject jobs that could not be placed even on empty cells.

A job is rejected if it alone exceeds a limit: a task larger than the largest cell that may run it,
more tokens than the pool has, or more than a quota allows. A job that more cells could satisfy is
accepted and waits: a gang larger than the pool, or constraints that no cell meets. The texts are
those of placement.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from controlplane.domain.jobs.submission import constraints_of
from controlplane.domain.placement.model.capacity_matrix import CapacityMatrix, Mask
from controlplane.domain.placement.model.interfaces import QuotaState, Request, ValidationFailure
from controlplane.domain.placement.model.policy import DEFAULT_VALIDATORS, PoolPolicy
from controlplane.domain.placement.model.snapshot import CellFacts, PoolSnapshot, ShapeFacts
from controlplane.domain.placement.plugins.validators import BUILT_IN
from controlplane.domain.placement.reasons import explain
from controlplane.domain.scopes import Quota
from controlplane.domain.state.states import Band
from controlplane.spec import Fault, JobSpec, TaskGroupSpec
from controlplane.spec.faults import Place
from controlplane.spec.parsing import field_path

# The validators that reject by a limit alone.
_LIMIT_VALIDATORS = ("user_quota", "project_quota", "domain_quota", "concurrency")
_WRITTEN = {"cpu_millis": "cpu", "memory_mib": "memory", "disk_mib": "disk"}
HINT = " (allow_unsatisfiable: true takes the job anyway)"

Finding = tuple[Place, str]


@dataclass(frozen=True, slots=True)
class OfferedPool:
    """All cells that ever registered in a pool, in any state, as empty cells.

    No cells: none ever registered, or each task is already known to fit on one.
    """

    name: str
    now: datetime
    cells: tuple[CellFacts, ...] = ()
    tokens: Mapping[str, int] | None = None
    validators: Sequence[str] = DEFAULT_VALIDATORS


@dataclass(frozen=True, slots=True)
class AdmissionCandidate:
    """A submitted job, and the quotas that apply to it."""

    position: int
    spec: JobSpec
    is_short: bool
    quotas: Sequence[Quota] = ()


def find_unsatisfiable(
    jobs: Sequence[AdmissionCandidate], pool: OfferedPool
) -> list[tuple[int, Fault]]:
    """Return (position, fault) for each of `jobs`, all of `pool`, that can never run.

    A job with `allow_unsatisfiable` is accepted.
    """
    checked = [
        (job, [shape_of(job.spec, group) for group in job.spec.groups])
        for job in jobs
        if not job.spec.allow_unsatisfiable
    ]
    candidates = _PoolCandidates(pool, [shape for _, shapes in checked for shape in shapes])
    found: dict[tuple[int, Fault], None] = {}
    for job, shapes in checked:
        findings = list(candidates.check_tasks(job, shapes))
        if not findings and job.spec.coscheduled:
            findings = list(candidates.check_gang(job, shapes))
        for place, text in findings:
            field = field_path(place, is_short=job.is_short)
            found[job.position, Fault(field, f"{text}{HINT}")] = None
    return list(found)


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


class _PoolCandidates:
    """One pool, and the shapes of all jobs that are checked together."""

    def __init__(self, pool: OfferedPool, shapes: Sequence[ShapeFacts]) -> None:
        self._pool = pool
        self._tokens = pool.tokens or {}
        self._matrix = CapacityMatrix(pool.cells, shapes, self._tokens)
        self._snapshot = PoolSnapshot(0, pool.name, pool.now, PoolPolicy(), pool.cells, ())

    # -------------------------------------------------------------------------- one task

    def check_tasks(
        self, job: AdmissionCandidate, shapes: Sequence[ShapeFacts]
    ) -> Iterator[Finding]:
        """Yield the violations of a single task of each group."""
        for position, shape in enumerate(shapes):
            place: Place = ("groups", position)
            for name, text in self._short_tokens(shape.resources):
                yield (*place, "resources", name), text
            for violation in self._violations(job, shape, shape.resources):
                what = str(violation.figures["what"])
                yield (*place, *_place_of(what)), violation.text
            yield from self._cells_for(shape, place)

    def _cells_for(self, shape: ShapeFacts, place: Place) -> Iterator[Finding]:
        usable = self._matrix.usable(shape)
        # If no cell has the task type, labels and tags, a matching cell may register later.
        if usable.any() and not self._room(shape, usable):
            reason = explain.explain_misfit(shape, self._snapshot, self._matrix, usable)
            name = next(iter(reason["shortfall"]))
            yield (*place, *_place_of(name)), str(reason["text"])

    def _room(self, shape: ShapeFacts, usable: Mask) -> int:
        return int(self._matrix.room_when_empty(self._matrix.vector(shape.resources), usable).sum())

    # -------------------------------------------------------------------------- limits

    def _short_tokens(self, resources: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        for name, amount in sorted(resources.items()):
            limit = self._tokens.get(name)
            if limit is not None and amount > limit:
                yield name, explain.explain_tokens({name: (0, amount, limit)})["text"]

    def _violations(
        self,
        job: AdmissionCandidate,
        shape: ShapeFacts,
        resources: Mapping[str, int],
        *,
        tasks: int = 1,
    ) -> Iterator[ValidationFailure]:
        """Yield the quota violations of `tasks` concurrent tasks with unused quotas."""
        quotas = [
            QuotaState(quota.scope.kind, quota.title, quota.limits, {}, 0, 0)
            for quota in job.quotas
        ]
        now = self._pool.now
        request = Request(shape, tasks, resources, quotas, now, now, is_whole=True)
        for name in _LIMIT_VALIDATORS:
            if quotas and name in self._pool.validators:
                yield from BUILT_IN[name]().check(request).violations

    # -------------------------------------------------------------------------- gangs

    def check_gang(
        self, job: AdmissionCandidate, shapes: Sequence[ShapeFacts]
    ) -> Iterator[Finding]:
        """Yield the violations of the minima of a gang."""
        gang = _GangMinima(job.spec, shapes)
        amounts = {name: gang.least(name) for shape in shapes for name in shape.resources}
        for _, text in self._short_tokens(amounts):
            yield gang.place, text
        for violation in self._violations(job, shapes[0], amounts):
            yield gang.place, violation.text
        for violation in self._violations(job, shapes[0], {}, tasks=gang.minimum):
            yield gang.place, violation.text


class _GangMinima:
    """The minima of a gang: `minimum` members in all, and at least the minimum of each group."""

    def __init__(self, spec: JobSpec, shapes: Sequence[ShapeFacts]) -> None:
        self.shapes = shapes
        self.minimum = spec.minimum()
        self._minima = spec.minima()
        self._replicas = [group.replicas for group in spec.groups]
        self.place = _place_of_minimum(spec)

    def least(self, name: str) -> int:
        """Return the smallest amount of a resource that `minimum` members hold together."""
        total, left = 0, self.minimum
        for amount, least, _ in self._by_size(name):
            total, left = total + amount * least, left - least
        for amount, least, most in self._by_size(name):
            more = min(left, most - least)
            total, left = total + amount * more, left - more
        return total

    def _by_size(self, name: str) -> list[tuple[int, int, int]]:
        """Return (amount per task, minimum, replicas) of the groups, sorted by amount."""
        amounts = [shape.resources.get(name, 0) for shape in self.shapes]
        return sorted(zip(amounts, self._minima, self._replicas, strict=True))


def _place_of(what: str) -> Place:
    """Return the field of a group that a limit refers to."""
    if what in ("running_tasks", "running_jobs"):
        return ("replicas",)
    return ("resources", _WRITTEN.get(what, what))


def _place_of_minimum(spec: JobSpec) -> Place:
    """Return the field that determines the minimum of a gang."""
    if spec.min_available is not None:
        return ("min_available",)
    position = max(range(len(spec.groups)), key=spec.minima().__getitem__)
    explicit = spec.groups[position].min_available is not None
    return ("groups", position, "min_available" if explicit else "replicas")
