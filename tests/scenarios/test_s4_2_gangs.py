"""S4.2: of a gang nothing starts unless the minimum of every group fits, at once and in one go."""

from typing import Any

import pytest

from controlplane.models import Attempt, Job, Quota
from tests.scenarios.stage import Stage


def gang(stage: Stage, *replicas: int, minima: tuple[int, ...] = (), **more: Any) -> Job:
    """A gang of groups of small tasks."""
    groups = [
        stage.group(name, replicas=count, **({"min_available": minima[number]} if minima else {}))
        for number, (name, count) in enumerate(zip("abc", replicas, strict=False))
    ]
    return stage.submit(groups=groups, coscheduled=True, **more)


def placed(stage: Stage, job: Job) -> list[int]:
    """How many of each group are placed."""
    return [counts.get("ASSIGNED", 0) for counts in stage.counts(job).values()]


def test_gang_does_not_start_while_one_group_lacks_its_minimum(stage: Stage) -> None:
    stage.cell(cpu=500)
    job = gang(stage, 3, 3)
    for _ in range(3):
        stage.place()
        assert stage.states(job) == ["PENDING"] * 6
    why = stage.why(job)
    assert (why["code"], why["need"], why["have"]) == ("waiting_for_gang", 6, 5)
    others = stage.submit_small(replicas=2)
    stage.place()
    assert stage.states(others) == ["ASSIGNED"] * 2


def test_gang_starts_at_once_when_all_minima_fit(stage: Stage) -> None:
    stage.cell(cpu=300)
    job = gang(stage, 3, 3)
    stage.place()
    stage.cell("cell-2", cpu=300)
    stage.place()
    assert placed(stage, job) == [3, 3]
    assert len(set(Attempt.objects.values_list("created_at", flat=True))) == 1


def test_members_beyond_the_minima_start_as_room_allows(stage: Stage) -> None:
    stage.cell(cpu=300)
    job = gang(stage, 3, 3, minima=(1, 2))
    stage.place()
    assert placed(stage, job) == [1, 2]
    stage.cell("cell-2", cpu=200)
    stage.place()
    assert sum(placed(stage, job)) == 5


def test_job_minimum_applies_in_addition_to_group_minima(stage: Stage) -> None:
    stage.cell(cpu=400)
    job = gang(stage, 3, 3, minima=(1, 1), min_available=5)
    stage.place()
    assert placed(stage, job) == [0, 0]
    stage.cell("cell-2", cpu=100)
    stage.place()
    assert sum(placed(stage, job)) == 5


def test_one_of_two_gangs_that_do_not_fit_together_is_placed_whole(stage: Stage) -> None:
    stage.cell(cpu=500)
    jobs = [gang(stage, 4), gang(stage, 4)]
    stage.place()
    assert [placed(stage, job) for job in jobs] == [[4], [0]]
    stage.start(*stage.newest(jobs[0]))
    stage.succeed(*stage.newest(jobs[0]))
    stage.place()
    assert placed(stage, jobs[1]) == [4]


def test_quota_that_fits_only_a_part_defers_the_whole_gang(stage: Stage) -> None:
    stage.cell()
    filler = stage.submit_small()
    stage.place()
    Quota.objects.create(user=stage.owner, running_tasks=4)
    job = gang(stage, 4)
    stage.place()
    assert placed(stage, job) == [0]
    assert "quota of user" in stage.why(job)["text"]
    stage.succeed(stage.last(filler))
    stage.place()
    assert placed(stage, job) == [4]


def test_group_by_places_a_gang_on_cells_of_one_label_value(stage: Stage) -> None:
    for name, zone, cpu in (("cell-1", "a", 200), ("cell-2", "b", 200), ("cell-3", "b", 100)):
        stage.cell_of("default", name, cpu=cpu, zone=zone)
    fits = gang(stage, 3, group_by="zone")
    stage.place()
    assert set(stage.cells(fits)) == {"cell-2", "cell-3"}
    job = gang(stage, 3, group_by="zone")
    stage.cell_of("default", "cell-4", cpu=100, zone="c")
    stage.place()
    assert placed(stage, job) == [0]


@pytest.mark.parametrize(("back", "count"), [(True, 3), (False, 0)])
def test_lost_member_is_placed_first_to_complete_its_gang(
    stage: Stage, back: bool, count: int
) -> None:
    stage.cell(cpu=300)
    job = gang(stage, 3, minima=(2,))
    stage.place()
    others = stage.submit_small(replicas=3)
    first, *rest = stage.newest(job)
    stage.start(first, *rest)
    stage.vanish(first) if back else stage.succeed(first, *rest)
    stage.place()
    assert stage.states(others).count("PENDING") == count


def test_gang_returns_to_a_failed_cell_if_others_are_too_small(
    stage: Stage,
) -> None:
    stage.cell("big", cpu=4000)
    job = stage.submit(coscheduled=True, replicas=5, resources={"cpu": 0.25, "memory": "64Mi"})
    stage.place()
    for attempt in stage.newest(job):
        stage.fail_system(attempt)
    assert stage.states(job) == ["PENDING"] * 5
    stage.cell("small", cpu=1000)
    stage.wait(60)
    stage.settle()
    stage.wait(60)
    stage.place()
    assert stage.states(job) == ["ASSIGNED"] * 5
    stage.check()
