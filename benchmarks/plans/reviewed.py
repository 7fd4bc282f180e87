"""Findings in plans that are known and harmless, each with the reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.plans.parsing import DISCARDED, SORT, WHOLE


@dataclass(frozen=True, slots=True)
class PlanReview:
    """Why findings of a kind are harmless: in a part of plans of statements with some words."""

    kind: str
    part: str
    words: str
    reason: str


_CAPACITY = "reads unreleased attempts only, whose number the capacity of the cells limits"
_WAITING = "groups the waiting tasks, which an index has"
_LABELS = (
    "`GET /jobs?label=` reads the newest jobs until a page is full; the worst case, in which fewer"
    " jobs than a page have the label, reads all"
)

REVIEWS = (
    PlanReview(
        DISCARDED,
        "controlplane_attempt by controlplane_attempt_pkey",
        "SELECT t.id, g.name",
        "`GET /tasks?cell=` reads the newest tasks until a page is full; an index by cell and task"
        " would cost a write for each attempt",
    ),
    PlanReview(
        DISCARDED,
        "controlplane_task by controlplane_task_pkey",
        "SELECT t.id, g.name",
        "`GET /tasks` with a filter reads the newest tasks until a page is full",
    ),
    PlanReview(
        DISCARDED,
        "controlplane_job by controlplane_job_pkey",
        "SELECT j.id, j.guid",
        _LABELS,
    ),
    PlanReview(WHOLE, "controlplane_job", "SELECT j.id, j.guid", _LABELS),
    PlanReview(
        DISCARDED,
        "CTE Scan",
        "WITH page AS",
        "no row of the page is an orphan, which is found by the key of the parent of each",
    ),
    PlanReview(
        DISCARDED,
        "controlplane_transition",
        "WITH changed AS",
        "reads the few rows of history of each started task by their index",
    ),
    PlanReview(
        DISCARDED,
        "controlplane_transition by transition_of_task",
        "SELECT DISTINCT job_id",
        "reads the job of each change once, from at most 100,000 rows",
    ),
    PlanReview(SORT, "", "WITH changed AS", "sorts the changes of one sample, at most 200,000"),
    PlanReview(DISCARDED, "controlplane_cell by", "SELECT EXISTS", _CAPACITY),
    PlanReview(DISCARDED, "controlplane_attempt by attempt_unreleased", "", _CAPACITY),
    PlanReview(DISCARDED, "controlplane_attempt by task_has_one_unreleased", "", _CAPACITY),
    PlanReview(
        DISCARDED, "controlplane_task by task_placeable", "", "reads waiting tasks by their index"
    ),
    PlanReview(
        DISCARDED,
        "controlplane_task by task_unsuccessful",
        "SELECT t.group_id",
        "counts the unsuccessful tasks of a page of jobs, in each tenth tick",
    ),
    PlanReview(
        DISCARDED,
        "",
        "SELECT t.id FROM controlplane_task t LEFT JOIN",
        "compares a page of 10,000 tasks with their attempts, in each tenth tick",
    ),
    PlanReview(SORT, "", "controlplane_shape", _WAITING),
    PlanReview(SORT, "", "SELECT EXISTS", _WAITING),
    PlanReview(SORT, "", "SELECT j.band", _WAITING),
    PlanReview(SORT, "", "WITH RECURSIVE waiting", _WAITING),
    PlanReview(
        SORT,
        "",
        "SELECT id FROM controlplane_transition",
        "sorts the identifiers of a range of the history, at most 200,000",
    ),
)


def find_review(finding: Mapping[str, Any]) -> str | None:
    """Return why a stored finding is harmless; None if that is not known.

    No sequential scan is.
    """
    for one in REVIEWS:
        is_part = finding["part"].startswith(one.part)
        if one.kind == finding["kind"] and is_part and one.words in finding["text"]:
            return one.reason
    return None
