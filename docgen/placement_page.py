"""docs/placement.md: how to read a pending reason, with the words that the code says.

Every example is made by what makes the reasons of real tasks; a code without one fails a test.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from controlplane.domain.constraints import Constraint, Operator
from controlplane.domain.placement.cycle.plugin_guard import Faults, guard
from controlplane.domain.placement.model.capacity_matrix import Board
from controlplane.domain.placement.model.interfaces import QuotaState, Request
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.placement.model.snapshot import CellFacts, PoolSnapshot, ShapeFacts
from controlplane.domain.placement.plugins.selectors.dispersed import Dispersed
from controlplane.domain.placement.plugins.sequencers.fifo import Fifo
from controlplane.domain.placement.plugins.validators.user_quota import UserQuota
from controlplane.domain.placement.reasons import explain, pending
from controlplane.domain.placement.reasons.explain import Reason
from controlplane.domain.scopes import Limits, ScopeKind
from controlplane.domain.state.states import Band, CellState
from docgen.tables import table

_NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
_SOON = datetime(2030, 1, 31, 12, 5, tzinfo=UTC)
_SHAPE = ShapeFacts(1, Band.INTERACTIVE, 1, 1, 1, 1, {"memory_mib": 2048}, "container")
_BARE = pending.Waiting(None, False, _NOW, [], None)

_HEAD = """# Why a task waits

Every pending task has a reason: a `code` for programs, a `text` for people, and the figures
behind it. Lists, the explanation of a task, `cellrun job`, `cellrun explain` and the pages of the
admin show the same words. A task that waits for several things shows the one that is nearest to
it; `cellrun explain` tells the others as `also`. [Scheduling](scheduling.md) says how
tasks are placed.

## How to read a pending reason

In the order in which they are asked; what stands first hides what stands below.

"""

_TAIL = """

What concerns one task alone (the first rows) is told when it is read. The rest is found by a
placement pass, written once for all tasks that are alike, and only when it changes; a task that
came just now may show for a moment what was found of others like it. `considered_at` of an
explanation says when the last pass began that looked at all that waited.

`queue` in an explanation is the place among all that wait in the pool and may start: by band,
gangs that have begun, children, then jobs as the sequencer orders them. It is an `estimate` where
the order depends on what owners hold (`drf`, `fair_share`) or on a plugin, and where more than
2,000 groups wait. It says who is tried first, not who goes first: in a pool that is not strict,
what fits passes what does not.

`nomination` names the cell on which room is kept for the task, and until when: others were
evicted for it, its gang left that room, or it waited longer than `starvation_seconds`.

## Asking before submitting

`cellrun submit FILE --dry-run` (`POST /jobs:dry-run`) places the job as a pass would, behind all
that waits already, and says where its tasks would go, why the others would wait, and whom they
would evict. Nothing is written.

## A bad decision becomes a test

`manage.py placement_snapshot --pool NAME > file.json` writes what a pass over the pool would look
at: cells, shapes, quotas, rows, gangs, the policy. `manage.py placement_replay file.json` decides
again, from that file alone, and prints the plan as a table (placements, reasons, rejections, who
found no room) with the time of each step. Neither writes to the database.

Names are in it as they are: of cells with their labels, of users and projects with quotas. Put
the file into `tests/replays/` with the plan that is right (`placement_replay file.json --json`)
as `NAME.plan.json`; `tests/unit/domain/placement/test_replays.py` decides each of them again and
compares.
"""


def write() -> str:
    """The page."""
    rows = [(f"`{code}`", make()["text"], meaning) for code, (make, meaning) in EXAMPLES.items()]
    head = ("code", "text, for example", "what it means, and what helps")
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
    board = Board(cells, (shape,))
    return explain.explain_misfit(shape, snapshot, board, board.usable(shape))


def _pending(**changes: object) -> Reason:
    known = {name: getattr(_BARE, name) for name in pending.Waiting.__dataclass_fields__}
    return pending.pending_reason(pending.Waiting(**{**known, **changes}), now=_NOW)


def _insufficient() -> Reason:
    return _misfit(_cell("cell-1", 4096, used=3072), _cell("cell-2", 4096, used=4096))


def _no_match() -> Reason:
    zone = Constraint("zone", Operator.IN, ("b",), required=True)
    shape = ShapeFacts(1, Band.BATCH, 1, 1, 1, 1, {}, "container", (zone,))
    return _misfit(_cell("cell-1", 4096), _cell("cell-2", 4096), shape=shape)


def _quota() -> Reason:
    limits = Limits(resources={"memory_mib": 4096})
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
        selector=("dispersed", Dispersed()),
        validators=broken,  # type: ignore[arg-type]
    )
    verdict = guarded.validators[0].check(Request(_SHAPE, 1, {}, [], _NOW, _NOW))
    return explain.explain_violations(verdict.violations)


EXAMPLES: Mapping[str, tuple[Callable[[], Reason], str]] = MappingProxyType(
    {
        "backing_off": (
            lambda: _pending(not_before=_SOON),
            "It failed, was refused or its cell was at fault; each further time it waits longer. Or"
            " several cells could not pull its image: the text names it, and an alert is open.",
        ),
        "waiting_for_previous_attempt": (
            lambda: _pending(attempt_open=True),
            "Its cell has not said yet that the container is gone. If it never will, an operator"
            " can release the attempt.",
        ),
        "waiting_for_job": (
            lambda: _pending(
                waits_for=[{"job": 7, "name": "prepare", "until": "succeeded"}], startable_at=None
            ),
            "What the job `depends_on`, or the job in whose place it steps (`settled`).",
        ),
        "waiting_for_dependency": (
            lambda: _pending(
                depends_on=[{"group": "prepare", "until": "succeeded"}], startable_at=None
            ),
            "Another group of the same job has not come as far as it must.",
        ),
        "waiting_for_gang_to_leave": (
            lambda: _pending(is_bouncing=True),
            "A member was lost; the gang starts again together, once all of it is back.",
        ),
        "waiting_for_start_time": (
            lambda: _pending(startable_at=_SOON),
            "The job's `start_after`.",
        ),
        "quota_exceeded": (
            _quota,
            "All quotas that stand against it are told. It waits until others of that user,"
            " project or domain are released, or the quota is raised.",
        ),
        "insufficient_tokens": (
            lambda: explain.explain_tokens({"licence": (3, 2, 4)}),
            "Limited tokens of the pool are taken; they come free when an attempt is released.",
        ),
        "no_cell_matches": (
            _no_match,
            "No ready cell runs such tasks, has the labels and takes the placement tags: each"
            " condition with how many cells it removed. Or no cell is ready at all.",
        ),
        "insufficient_resources": (
            _insufficient,
            "The cell that comes closest, and what it lacks. `larger than every cell of the pool`:"
            " it will never fit the cells that are there.",
        ),
        "build_slots_full": (
            lambda: _misfit(_cell("cell-1", 4096, slots=0)),
            "There is room, but those cells prepare as many containers as the pool's"
            " `max_building_per_cell` allows. It passes by itself.",
        ),
        "waiting_for_gang": (
            lambda: explain.explain_gang(4, 3, _insufficient()),
            "Its gang starts together, or not at all; behind the semicolon, why the next member"
            " could not be placed.",
        ),
        "plugin_failed": (
            _plugin,
            "A plugin of another package raised an error; there is an alert with it. Nothing that"
            " it was asked about is placed.",
        ),
        "queue_position": (
            explain.explain_unseen,
            "Nothing else is known: its turn has not come. In a strict pool: `"
            + str(explain.explain_behind(12)["text"])
            + "`.",
        ),
    }
)
