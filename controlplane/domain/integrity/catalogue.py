"""Catalogue of all invariants, ordered by number."""

from collections.abc import Sequence

from controlplane.domain.integrity import (
    attempts,
    cache,
    concurrency,
    history,
    jobs,
    schedules,
    stored_bytes,
)
from controlplane.domain.integrity.invariant import Invariant, InvariantViolation
from controlplane.domain.integrity.rows import IntegrityRows

INVARIANTS: tuple[Invariant, ...] = tuple(
    sorted(
        (
            item
            for module in (attempts, jobs, history, cache, stored_bytes, concurrency, schedules)
            for item in vars(module).values()
            if isinstance(item, Invariant)
        ),
        key=lambda item: item.number,
    )
)
REPAIRED = tuple(item for item in INVARIANTS if item.repair)
"""The invariants that a recount checks."""


def find_violations(
    rows: IntegrityRows, among: Sequence[Invariant] = INVARIANTS
) -> list[InvariantViolation]:
    """Return all violations, ordered by invariant number."""
    return [
        InvariantViolation(item.number, *finding) for item in among for finding in item.check(rows)
    ]


def render_document() -> str:
    """Return the text of docs/invariants.md."""
    table = "\n".join(
        f"| INV-{item.number} | {item.statement} | {item.upheld_by} | {item.repair} |"
        for item in INVARIANTS
    )
    return f"""{_INTRODUCTION}
| | always true | upheld by | corrected by [convergence](convergence.md#repair) |
|---|---|---|---|
{table}
"""


_INTRODUCTION = """# Invariants

Statements about the database that hold after every transaction, even after lost or late messages
and killed processes. `make docs` generates this page from `controlplane/domain/integrity`.

The simulation (`tests/simulation`) checks all of them while it runs. It also checks statements
about the containers that its simulated machines created:

* the container of an attempt is never started twice, and an at-most-once task never gets a second
  container;
* a container runs only as long as its attempt is not released, unless its cell was declared lost or
  an operator released it; rows of a deleted job stay as long as one of its containers runs;
* no container is created before the dependencies of its group and job are met, while a container of
  a job that it replaces exists, or for a gang below its minima that is not being requeued;
* a gang is placed with its minima or not at all; a gang that fell below them is placed again only
  after every member was requeued;
* a one-off task has at most one claim at a time, and at most one task that is not deleted has its
  guid; every requested callback is delivered, and a second time only if the process of the first
  delivery died;
* no attempt is made while its job or project is held;
* in no span of a concurrency key's rate are more attempts with the key created than it allows; a
  job is refused for its key, or replaces others, only if they do not fit together;
* each instant of a schedule starts one job or none, by its rules for overlap and missed instants,
  and the history has its outcome, whatever process was killed or away;
* no job expires while another job waits for it, depends on it or reads from it;
* most cells of a pool are not declared lost at once unless an operator confirms it;
* once faults stop, every job ends in the expected state and is settled; expired data is deleted.

Further tests, in virtual time and with real processes, run two hundred tasks through outages of the
control plane (ten minutes), of its inbox and of the broker (five minutes each): no cell is lost and
no task fails.

`manage.py check_invariants` checks a live database in one read-only snapshot, page by page, lists
every violation with its ids, and exits with 1 if there is one. The end-to-end tests run it on every
stack before they stop it.
"""
