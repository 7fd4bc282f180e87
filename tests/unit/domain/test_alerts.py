"""The subject of an alert is found from its kind, or from the words of its subject."""

import pytest

from controlplane.domain.alerts import AlertSubject, SubjectKind, find_subject


@pytest.mark.parametrize(
    ("kind", "subject", "expected", "key"),
    [
        ("cell_lost", "cell-1", SubjectKind.CELL, "cell-1"),
        ("cell_failing", "job 7", SubjectKind.CELL, "job 7"),
        ("mass_loss", "gpu", SubjectKind.POOL, "gpu"),
        ("no_room_made", "pool gpu", SubjectKind.POOL, "gpu"),
        ("plugin_failed", "fair_share of pool gpu", SubjectKind.POOL, "gpu"),
        ("plugin_failed", "hook batch", SubjectKind.OTHER, "hook batch"),
        ("pool_skipped", "pool 3", SubjectKind.POOL_ID, "3"),
        ("job_skipped", "recount of job 7", SubjectKind.JOB, "7"),
        ("contradiction", "job 7", SubjectKind.JOB, "7"),
        ("exclusive_held", "attempt 01a2", SubjectKind.ATTEMPT, "01a2"),
        ("shape_unreadable", "shape 9", SubjectKind.SHAPE, "9"),
        ("shape_unreadable", "group 9", SubjectKind.GROUP, "9"),
        ("shape_unreadable", "orders of cell c-1", SubjectKind.CELL, "c-1"),
        ("tick_late", "placement", SubjectKind.TICK, "placement"),
        ("rule_failed", "rule endings", SubjectKind.TICK, "convergence"),
        ("image_not_pulled", "hub/job 7", SubjectKind.IMAGE, "hub/job 7"),
        ("inbox_dropped", "inbox.3", SubjectKind.OTHER, "inbox.3"),
        ("of_another_release", "job 7", SubjectKind.JOB, "7"),
    ],
)
def test_subject_is_found(kind: str, subject: str, expected: SubjectKind, key: str) -> None:
    assert find_subject(kind, subject) == AlertSubject(expected, key)
