"""Submission with a concurrency key: which jobs fit, which are refused, which are replaced."""

from typing import Any

import pytest

from controlplane.domain.jobs.concurrency import (
    MOST_REPLACED,
    ConcurrencyKeyFull,
    KeyHolder,
    judge_keys,
)
from controlplane.domain.jobs.submission import PlannedJob, plan_groups
from controlplane.domain.placement.model.concurrency import key_number
from controlplane.spec import parse_job
from tests.harness.domain.facts import NOW

OWN, OTHER = 1, 2
KEY = key_number(5, "k")


def planned(position: int = 0, tasks: int = 1, **rule: Any) -> PlannedJob:
    body = {"name": "a", "image": "x", "replicas": tasks}
    spec = parse_job(body | ({"concurrency": {"key": "k", "limit": 3, **rule}} if rule else {}))
    return PlannedJob(position, spec, True, "", "", 5, 1, OWN, tasks, 0, plan_groups(spec, now=NOW))


def holders(*counts: int, owner: int = OWN) -> dict[int, list[KeyHolder]]:
    return {KEY: [KeyHolder(10 + number, owner, count) for number, count in enumerate(counts)]}


@pytest.mark.parametrize(
    ("tasks", "there", "fits"),
    [
        (1, (1, 1), True),
        (1, (2, 1), False),
        (2, (1,), True),
        (2, (1, 1), False),
        (9, (), True),
        (9, (1,), False),
        (1, (0, 0), True),
    ],
)
def test_job_is_refused_unless_all_open_tasks_fit(
    tasks: int, there: tuple[int, ...], fits: bool
) -> None:
    job = planned(tasks=tasks, on_conflict="reject")
    if fits:
        assert judge_keys([job], holders(*there)) == {}
        return
    with pytest.raises(ConcurrencyKeyFull, match="concurrency key k is full"):
        judge_keys([job], holders(*there))


def test_waiting_job_is_never_refused() -> None:
    assert judge_keys([planned(tasks=9, on_conflict="wait")], holders(9, 9)) == {}
    assert judge_keys([planned(tasks=9)], holders(9, 9)) == {}


@pytest.mark.parametrize(
    ("tasks", "there", "replaced"),
    [
        (1, (1, 1), []),
        (1, (1, 1, 1), [10]),
        (1, (1, 2, 1), [10, 11]),
        (1, (0, 3), [10, 11]),
        (9, (1, 1), [10, 11]),
    ],
)
def test_oldest_jobs_are_replaced_until_the_job_fits(
    tasks: int, there: tuple[int, ...], replaced: list[int]
) -> None:
    job = planned(tasks=tasks, on_conflict="replace")
    assert judge_keys([job], holders(*there)) == ({0: replaced} if replaced else {})


def test_only_own_jobs_are_replaced() -> None:
    job = planned(on_conflict="replace")
    mixed = {KEY: [KeyHolder(10, OTHER, 1), KeyHolder(11, OWN, 1), KeyHolder(12, OTHER, 1)]}
    assert judge_keys([job], mixed) == {0: [11]}
    with pytest.raises(ConcurrencyKeyFull, match="only your own jobs are replaced"):
        judge_keys([job], holders(1, 1, 1, owner=OTHER))


def test_jobs_replaced_by_name_do_not_count() -> None:
    job = planned(on_conflict="reject")
    assert judge_keys([job], holders(1, 1, 1), leaving=[11]) == {}


def test_jobs_of_one_submission_count_for_each_other() -> None:
    def jobs(policy: str, count: int) -> list[PlannedJob]:
        return [planned(position, on_conflict=policy) for position in range(count)]

    assert judge_keys(jobs("reject", 3), {}) == {}
    for policy in ("reject", "replace"):
        with pytest.raises(ConcurrencyKeyFull, match="earlier jobs of this submission") as refused:
            judge_keys(jobs(policy, 4), {})
        assert refused.value.position == 3
    # Each replaces the next oldest of those that were there before.
    assert judge_keys(jobs("replace", 2), holders(1, 1, 1)) == {0: [10], 1: [11]}


def test_number_of_replaced_jobs_is_bounded() -> None:
    job = planned(on_conflict="replace")
    within = holders(*[1] * (MOST_REPLACED + 2))
    assert len(judge_keys([job], within)[0]) == MOST_REPLACED
    with pytest.raises(ConcurrencyKeyFull, match="at most 1000 are allowed"):
        judge_keys([job], holders(*[1] * (MOST_REPLACED + 3)))


def test_refusal_names_a_few_jobs() -> None:
    with pytest.raises(ConcurrencyKeyFull) as refused:
        judge_keys([planned(on_conflict="reject")], holders(1, 1, 1, 1, 1))
    assert str(refused.value) == (
        "concurrency key k is full: 5 open tasks of job 10 and job 11 and job 12 and 2 more jobs"
        " + 1 of this job > 3 allowed (on_conflict: reject)"
    )
