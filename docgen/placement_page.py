"""Generate docs/placement.md: how to read a pending reason.

The code that explains real tasks renders the examples; a reason code without one fails a test.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from controlplane.domain.constraints import Constraint, Operator
from controlplane.domain.holds import OpenHold
from controlplane.domain.placement.cycle.plugin_guard import Faults, guard
from controlplane.domain.placement.model.capacity_matrix import CapacityMatrix
from controlplane.domain.placement.model.concurrency import ConcurrencyRule
from controlplane.domain.placement.model.interfaces import QuotaState, Request
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.placement.model.snapshot import CellFacts, PoolSnapshot, ShapeFacts
from controlplane.domain.placement.plugins.selectors.dispersed import DispersedSelector
from controlplane.domain.placement.plugins.sequencers.by_job import Fifo
from controlplane.domain.placement.plugins.validators.quotas import UserQuota
from controlplane.domain.placement.reasons import explain, pending
from controlplane.domain.placement.reasons.explain import Reason
from controlplane.domain.roles import Role
from controlplane.domain.scopes import ScopeKind, ScopeLimits
from controlplane.domain.state.states import Band, CellState
from docgen.tables import table

_NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
_SOON = datetime(2030, 1, 31, 12, 5, tzinfo=UTC)
_SHAPE = ShapeFacts(1, Band.INTERACTIVE, 1, 1, 1, 1, {"memory_mib": 2048}, "container")
_BARE = pending.PendingTaskFacts(None, False, _NOW, [], None)

_HEAD = """# Why a task waits

Every pending task has a reason: a `code`, a `text`, and figures. Lists, the explanation of a task,
`cellrun job`, `cellrun explain` and the admin show the same reason. If several reasons apply, the
first one in the table is shown; `cellrun explain` also lists the others (`also` in the API).
[Scheduling](scheduling.md) describes how tasks are placed.

## How to read a pending reason

Reasons in order of precedence. Each code is a link to what to check and do
([troubleshooting](troubleshooting.md#a-task-waits)):

"""

_TAIL = """

Reasons of a single task (the first rows) are computed when they are read. The others come from a
placement pass, and are stored once for all tasks of a shape, when they change; so a new task may
briefly show the reason of its shape. `considered_at` of an explanation is the start
of the last pass that considered all pending tasks.

`queue` in an explanation is the position among all tasks in the pool that may start: by band, then
gangs that have begun, then children, then the sequencer's order. It is an `estimate` if the order
depends on shares (`drf`, `fair_share`, `fair_projects`) or on a plugin, and if more than 2,000
groups wait.
Placement tries tasks in this order; in a pool without `strict_fifo`, tasks that fit pass tasks that
do not.

`nomination` is the cell on which capacity is reserved for the task, and the end of that
reservation: after an eviction, for its requeued gang, or after `starvation_seconds`. The quotas of
the task are reserved with it, in all pools.

## Dry runs

`cellrun submit FILE --dry-run` (`POST /jobs:dry-run`) places the job behind all pending work, and
shows where its tasks would run, why others would wait, and which attempts would be evicted. Nothing
is written.

## Turn a bad decision into a test

`manage.py placement_snapshot --pool NAME > file.json` writes the input of a pass over the pool:
cells, shapes, quotas, rows, gangs, the policy. `manage.py placement_replay file.json` repeats the
decision from that file alone and prints the plan (placements, reasons, rejections, tasks without
capacity) and the time of each step. Neither command writes to the database.

The file contains names: cells with their labels, users and projects with quotas. Put it into
`tests/replays/` with the expected plan (`placement_replay file.json --json`) as `NAME.plan.json`;
`tests/unit/domain/placement/test_replays.py` repeats each decision and compares the plans.
"""


def write() -> str:
    """Return the page."""
    rows = [
        (f"[`{code}`](troubleshooting.md#reason-{code})", make()["text"], meaning)
        for code, (make, meaning) in EXAMPLES.items()
    ]
    head = ("code", "example text", "meaning")
    return f"{_HEAD}{table(head, rows)}{_TAIL}"


def _cell(name: str, memory: int, *, used: int = 0, slots: int | None = None) -> CellFacts:
    return CellFacts(
        cell_id=ord(name[-1]),
        name=name,
        state=CellState.READY,
        incarnation="",
        capacity={"memory_mib": memory},
        used={"memory_mib": used},
        task_types=frozenset({"container"}),
        labels={"zone": "a"},
        start_slots=slots,
    )


def _misfit(*cells: CellFacts, shape: ShapeFacts = _SHAPE) -> Reason:
    snapshot = PoolSnapshot(1, "default", _NOW, PoolPolicy(), cells, (shape,))
    board = CapacityMatrix(cells, (shape,))
    return explain.explain_misfit(shape, snapshot, board, board.usable(shape))


def _pending(**changes: object) -> Reason:
    known = {name: getattr(_BARE, name) for name in pending.PendingTaskFacts.__dataclass_fields__}
    return pending.pending_reasons(pending.PendingTaskFacts(**{**known, **changes}), now=_NOW)[0]


def _insufficient() -> Reason:
    return _misfit(_cell("cell-1", 4096, used=3072), _cell("cell-2", 4096, used=4096))


def _no_match() -> Reason:
    zone = Constraint("zone", Operator.IN, ("b",), required=True)
    shape = ShapeFacts(1, Band.BATCH, 1, 1, 1, 1, {}, "container", (zone,))
    return _misfit(_cell("cell-1", 4096), _cell("cell-2", 4096), shape=shape)


def _quota() -> Reason:
    limits = ScopeLimits(resources={"memory_mib": 4096})
    state = QuotaState(ScopeKind.USER, "user ann", limits, {"memory_mib": 3072}, 3, 1)
    request = Request(_SHAPE, 1, _SHAPE.resources, [state], _NOW, _NOW)
    return explain.explain_violations(UserQuota().check(request).violations)


class _Broken:
    def check(self, request: Request) -> None:
        raise ValueError


def _plugin() -> Reason:
    broken = {"licences": _Broken()}
    guarded = guard(
        Faults(),
        sequencer=("fifo", Fifo()),
        selector=("dispersed", DispersedSelector()),
        validators=broken,  # type: ignore[arg-type]
    )
    verdict = guarded.validators[0].check(Request(_SHAPE, 1, {}, [], _NOW, _NOW))
    return explain.explain_violations(verdict.violations)


EXAMPLES: Mapping[str, tuple[Callable[[], Reason], str]] = MappingProxyType(
    {
        "held": (
            lambda: _pending(holds=[OpenHold("ann", "the data is wrong", _NOW, Role.SUBMITTER)]),
            "The job, or its project, is [held](scheduling.md#holds) until it is released.",
        ),
        "backing_off": (
            lambda: _pending(not_before=_SOON),
            "The task failed, its cell refused it, or its cell failed; the wait grows with each"
            " failure. Or several cells could not pull its image: the text names the image, and an"
            " alert is open.",
        ),
        "waiting_for_previous_attempt": (
            lambda: _pending(attempt_open=True),
            "Its cell has not confirmed that the container is gone.",
        ),
        "waiting_for_job": (
            lambda: _pending(
                waits_for=[{"job": 7, "name": "prepare", "until": "succeeded"}], startable_at=None
            ),
            "Its job depends on that job, or replaces it (until it has `settled`).",
        ),
        "waiting_for_dependency": (
            lambda: _pending(
                depends_on=[{"group": "prepare", "until": "succeeded"}], startable_at=None
            ),
            "Another group of the job has not reached the required state.",
        ),
        "waiting_for_gang_to_leave": (
            lambda: _pending(is_requeuing=True),
            "A member was lost; the gang starts again when all members are requeued.",
        ),
        "waiting_for_cache": (
            lambda: _pending(cache=pending.CacheWait(is_lookup=False, job_id=7, since=_NOW)),
            "An [identical task](cache.md#reservations) runs, whose result this task takes; or its"
            " result is being looked up in the cache.",
        ),
        "waiting_for_start_time": (
            lambda: _pending(startable_at=_SOON),
            "The time is `start_after` of the job.",
        ),
        "quota_exceeded": (
            _quota,
            "Lists all exceeded quotas of its user, project and domain.",
        ),
        "insufficient_tokens": (
            lambda: explain.explain_tokens({"licence": (3, 2, 4)}),
            "Limited tokens of the pool are in use.",
        ),
        "concurrency_limit": (
            lambda: explain.explain_concurrency(
                ConcurrencyRule(1, "customer-42", 2), held=2, started=0, requested=1
            ),
            "Tasks with the [concurrency key](job-spec.md#concurrency-keys) of its job use the"
            " limit up, or as many have started as the rate allows.",
        ),
        "no_cell_matches": (
            _no_match,
            "No ready cell has the task type, labels and placement tags; the figures show how many"
            " cells each condition removed. Or no cell is ready.",
        ),
        "insufficient_resources": (
            _insufficient,
            "The closest cell and its shortfall. `larger than every cell of the pool`: the task"
            " cannot fit on any current cell.",
        ),
        "build_slots_full": (
            lambda: _misfit(_cell("cell-1", 4096, slots=0)),
            "Cells have capacity, but prepare as many containers as the pool's"
            " `max_building_per_cell` allows.",
        ),
        "waiting_for_gang": (
            lambda: explain.explain_gang(4, 3, _insufficient()),
            "Its gang starts together or not at all; after the semicolon, the reason of the next"
            " member.",
        ),
        "plugin_failed": (
            _plugin,
            "A validator of another package failed; an alert has the error. The tasks that it"
            " should check are not placed.",
        ),
        "queue_position": (
            explain.explain_unseen,
            "No other reason is known: placement has not considered it yet. In a strict pool: `"
            + str(explain.explain_behind(12)["text"])
            + "`.",
        ),
    }
)
