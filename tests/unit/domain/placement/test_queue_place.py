"""A waiting task's place: by band, begun gangs, children, then as the sequencer orders jobs."""

import pytest

from controlplane.domain.placement.reasons.queue_position import QueuedGroup, QueuePlace, find_place
from controlplane.domain.state.states import Band


def group(
    job_id: int,
    count: int = 1,
    band: Band = Band.INTERACTIVE,
    *,
    position: int = 0,
    first: bool = False,
    child: bool = False,
) -> QueuedGroup:
    return QueuedGroup(band, first, child, job_id, position, count, f"job-{job_id}")


OWN = group(5, 4, position=1)
GROUPS = [
    group(9, 3, Band.PRODUCTION),
    group(8, 5, first=True),
    group(7, 7, child=True),
    group(4, 11),
    group(5, 2),
    OWN,
    group(6, 13),
    group(1, 17, Band.BATCH),
]
TOTAL = sum(item.count for item in GROUPS)


@pytest.mark.parametrize(
    ("sequencer", "ahead", "behind"),
    [
        ("fifo", 3 + 5 + 7 + 11 + 2, 4),
        ("lifo", 3 + 5 + 7 + 13 + 2, 6),
    ],
)
def test_position_counts_the_tasks_in_front(sequencer: str, ahead: int, behind: int) -> None:
    place = find_place(GROUPS, OWN, 2, sequencer)
    assert place == QueuePlace(ahead + 2 + 1, TOTAL, behind, f"job-{behind}")


def test_position_is_an_estimate_if_shares_decide_the_order() -> None:
    place = find_place(GROUPS, OWN, 0, "drf")
    assert place.is_estimate
    assert place.as_document() == {
        "position": 29,
        "of": TOTAL,
        "behind": {"job": 4, "name": "job-4"},
        "estimate": True,
        "text": f"position about 29 of {TOTAL} in the queue of its pool, behind job 4",
    }


def test_first_task_in_the_queue_has_no_job_in_front() -> None:
    assert find_place([OWN], OWN, 0, "fifo").as_document() == {
        "position": 1,
        "of": 4,
        "behind": None,
        "estimate": False,
        "text": "position 1 of 4 in the queue of its pool",
    }
