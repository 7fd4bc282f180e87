"""Catalogue of all invariants by number. Numbers are never reused."""

from controlplane.domain.integrity.checks import attempts, history, jobs
from controlplane.domain.integrity.rows import IntegrityRows, Invariant, InvariantViolation

_EFFECTS = "commands.effects (compare-and-set under the job's lock)"
_TABLE = "domain.transitions and domain.changes"

INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        1,
        "A task has at most one attempt that is not released.",
        "constraint task_has_one_unreleased_attempt; statement PLACE_TASKS",
        attempts.one_unreleased,
    ),
    Invariant(
        2,
        "`attempt_open` of a task is set exactly while an attempt of it is not released, and that"
        " one is its present attempt.",
        "domain.changes",
        attempts.open_iff_unreleased,
    ),
    Invariant(
        3,
        "A task is active exactly while an attempt of it is; that is its present one, in the same"
        " state and not released.",
        f"{_TABLE}; constraint task_active_has_open_attempt",
        attempts.active_together,
    ),
    Invariant(
        4,
        "An attempt is released only after its end, and then has a release kind.",
        "domain.changes; constraint attempt_released_after_its_end",
        attempts.released_in_order,
    ),
    Invariant(
        5,
        "The instants of an attempt are in order: created, started, finished, released.",
        "domain.reports (a cell's clock is accepted only between creation and now)",
        attempts.instants_in_order,
    ),
    Invariant(
        6,
        "An attempt of a task begins only after the one before it was released.",
        "statement PLACE_TASKS (NOT attempt_open)",
        attempts.one_after_the_other,
    ),
    Invariant(
        7,
        "Attempts of a task are numbered from 1 without gaps; the present one is the last.",
        "constraint attempt_number_unique_in_task; commands.placement",
        attempts.numbered,
    ),
    Invariant(
        8,
        "The three counters of a task are the numbers of its attempts charged to each budget: no"
        " attempt is charged twice.",
        _EFFECTS,
        attempts.counters_rederive,
    ),
    Invariant(
        9,
        "An attempt is charged only by its end.",
        "domain.changes",
        attempts.charged_at_the_end,
    ),
    Invariant(
        10,
        "No open task has used more than its budgets, no ended one more than one beyond.",
        "domain.transitions",
        attempts.within_budgets,
    ),
    Invariant(
        11,
        "A task SUCCEEDED by its last attempt and by no other.",
        "domain.transitions (terminal is final)",
        attempts.success_by_an_attempt,
    ),
    Invariant(
        12,
        "The task, group, job and cell of every row exist and agree.",
        "commands.submission_rows, commands.effects (these columns have no foreign keys)",
        attempts.linked,
    ),
    Invariant(
        13,
        "`finished_at` of a task or attempt is set exactly if its state is terminal; an attempt is"
        " never PENDING or UNSCHEDULABLE.",
        "constraints task_finished_iff_terminal, attempt_finished_iff_terminal",
        attempts.states_known,
    ),
    Invariant(
        14,
        "A task that runs at most once has no attempt after one that had a container.",
        "domain.transitions (is_final)",
        attempts.at_most_once_kept,
    ),
    Invariant(
        15,
        "A strictly exclusive attempt is never released by the loss of its cell.",
        "domain.convergence.lost_cells",
        attempts.strict_not_lost,
    ),
    Invariant(
        20,
        "A group has `task_count` tasks, each with a different index below its replicas: all"
        " indices, except in the retry of another job.",
        "commands.submission_rows; constraint task_index_unique_in_group",
        jobs.groups_complete,
    ),
    Invariant(
        21,
        "The counts of a group equal the number of its tasks in each state.",
        _EFFECTS,
        jobs.counts_right,
    ),
    Invariant(
        22,
        "`killed_by_dependency` of a group counts its tasks that a dependency killed.",
        _EFFECTS,
        jobs.excused_right,
    ),
    Invariant(
        23,
        "A job's state follows from its tasks' states, or is the end that was ordered.",
        "domain.jobs, domain.rollup",
        jobs.follows_from_tasks,
    ),
    Invariant(
        24,
        "A job has ended exactly when all its tasks have.",
        "domain.jobs; constraint job_finished_iff_terminal",
        jobs.ends_with_its_tasks,
    ),
    Invariant(
        25,
        "A settled job has ended, and all its attempts are released.",
        "commands.effects, commands.convergence.repairs",
        jobs.settled_without_attempts,
    ),
    Invariant(
        26,
        "No attempt is placed before its group may start, or after its job has ended.",
        "queries.placement, commands.placement",
        jobs.placed_when_it_might,
    ),
    Invariant(
        27,
        "A gang with an active member meets its minima, or is being requeued, or ends.",
        "domain.gangs, domain.jobs; commands.placement (whole or not at all)",
        jobs.gangs_whole,
    ),
    Invariant(
        28,
        "No group of a job may start while the job waits for other jobs.",
        "domain.jobs.newly_startable",
        jobs.blocked_not_startable,
    ),
    Invariant(
        30,
        "The attempts of a cell's present incarnation that are not released never hold more of any"
        " resource than the cell has.",
        "commands.placement (checked again under the cell's lock)",
        jobs.never_over_committed,
    ),
    Invariant(
        31,
        "A cell that ever registered has a lease, of its present incarnation.",
        "commands.cell_messages",
        jobs.lease_of_its_incarnation,
    ),
    Invariant(
        40,
        "The history of a task or job is connected: each change begins where the one before it"
        " ended, and the last ends at the present state.",
        _EFFECTS,
        history.connected,
    ),
    Invariant(
        41,
        "Terminal states are final: no task or job ever left one.",
        "domain.transitions",
        history.final,
    ),
    Invariant(
        42,
        "Every change of a task has a row in the transition table.",
        "domain.transitions",
        history.legal,
    ),
    Invariant(
        43,
        "Every change has a known reason.",
        "domain.states.Reason",
        history.reasoned,
    ),
    Invariant(
        44,
        "The history has the placement of every attempt, and its end.",
        _EFFECTS,
        history.attempts_recorded,
    ),
)


def find_violations(records: IntegrityRows) -> list[InvariantViolation]:
    """Return all violations, ordered by invariant number."""
    return [
        InvariantViolation(invariant.number, subject, text)
        for invariant in INVARIANTS
        for subject, text in invariant.find(records)
    ]


def render_document() -> str:
    """Return the text of docs/invariants.md."""
    rows = "\n".join(
        f"| INV-{item.number} | {item.statement} | {item.upheld_by} |" for item in INVARIANTS
    )
    return f"""{_INTRODUCTION}
| | always true | upheld by |
|---|---|---|
{rows}
"""


_INTRODUCTION = """# Invariants

Statements that hold for the rows after every transaction, even after lost or late messages and
killed processes. `make docs` generates this page from `controlplane/domain/integrity`.

The simulation (`tests/simulation`) checks all of them while it runs, and further ones by the
containers that the machines created:

* no attempt's container is ever started twice, and no second container is ever created for a task
  that runs at most once;
* a container runs only as long as its attempt is not released, unless its cell was declared lost or
  an operator released it; rows of a deleted job stay as long as one of its containers runs;
* no container is created before the dependencies of its group and job are met on the machines, nor
  beside one of a job that was replaced, nor for a gang below its minima that is not being requeued;
* a gang is always placed with its minima or not at all, and after it fell below them, not before
  every member was requeued;
* a one-off task has one claim until that is released or its 30 s are over, and its guid has one
  task that is not deleted; every requested callback is delivered, and delivered again only after a
  delivery that was lost with its process;
* no job is deleted for its age while another job waits for it, depends on it or reads from it, and
  most cells of a pool are not declared lost at once unless an operator confirms it;
* once faults stop, every job ends in the expected state and is settled; expired data is deleted.

Outages of the control plane (ten minutes), of its inbox or of the broker (five) with two hundred
tasks running lose no cell and fail no task, in virtual time and with real processes.

`manage.py check_invariants` checks a live database in one read-only snapshot, page by page, lists
every violation with its ids, and exits with 1 if there is one. The end-to-end tests run it on every
stack before they stop it, even after processes were killed.
"""
