"""The table of owners: the component that acts on each open task, and on other rows."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.owners import (
    OTHER_OWNERS,
    TASK_OWNERS,
    OwnerFacts,
    find_owner,
)
from controlplane.domain.state.states import ACTIVE, ATTEMPT_STATES, TERMINAL, Exclusive
from tests.harness.domain.facts import NOW, attempt, task

ENDED = sorted(TERMINAL & ATTEMPT_STATES)


def owner(
    state: S,
    held_by: S | None = None,
    *,
    released: bool = False,
    forced: bool = False,
    at_most_once: bool = False,
    exclusive: Exclusive = Exclusive.NO,
    **circumstances: Any,
) -> str | None:
    """Return the rule of the owner of such a task."""
    present = None
    if held_by:
        released_at = NOW if released else None
        present = attempt(held_by, released_at=released_at, is_stop_forced=forced)
    facts = replace(task(state, present), at_most_once=at_most_once, exclusive=exclusive)
    found = find_owner(OwnerFacts(facts, **circumstances))
    return found.rule if found else None


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_ended_and_released_task_has_no_owner(state: S) -> None:
    assert owner(state) is None
    assert owner(state, S.FAILED, released=True) is None
    whatever: dict[str, Any] = {
        "is_cell_lost": True,
        "is_job_ending": True,
        "is_job_requeuing": True,
        "waits_for_jobs": True,
        "is_group_startable": False,
        "has_deadline": True,
        "has_timeout": True,
        "is_held": True,
    }
    assert owner(state, **whatever) is None
    assert owner(state, S.FAILED, released=True, **whatever) is None


@pytest.mark.parametrize(
    ("state", "rule"),
    [
        (S.ASSIGNED, "unanswered"),
        (S.BUILDING, "stuck_builds"),
        (S.RUNNING, "silent_leases"),
    ],
)
def test_each_active_state_has_its_rule(state: S, rule: str) -> None:
    assert owner(state, state) == rule
    assert owner(state, state, is_cell_lost=True) == "attempts_of_lost_cells"
    assert owner(state, state, is_job_requeuing=True) == "requeuing_jobs"
    assert owner(state, state, is_job_ending=True, is_cell_lost=True) == "ending_jobs"
    assert owner(state, state, is_cell_lost=True, is_job_requeuing=True) == "attempts_of_lost_cells"


def test_running_task_with_a_timeout_is_owned_by_the_overrun_rule() -> None:
    assert owner(S.RUNNING, S.RUNNING, has_timeout=True) == "overruns"
    assert owner(S.BUILDING, S.BUILDING, has_timeout=True) == "stuck_builds"


def test_at_most_once_order_is_owned_by_the_lease_rule() -> None:
    assert owner(S.ASSIGNED, S.ASSIGNED, at_most_once=True) == "silent_leases"
    assert owner(S.BUILDING, S.BUILDING, at_most_once=True) == "stuck_builds"
    assert owner(S.RUNNING, S.RUNNING, at_most_once=True, is_job_requeuing=True) == "silent_leases"


@pytest.mark.parametrize("state", ENDED)
def test_ended_attempt_that_is_not_released_is_owned_by_a_stop_rule(state: S) -> None:
    rules = {False: "unconfirmed_stops", True: "stuck_stops"}
    for own, (forced, rule) in product((state, S.PENDING), rules.items()):
        assert owner(own, state, forced=forced) == rule
        assert owner(own, state, forced=forced, is_job_requeuing=True) == rule
        assert owner(own, state, forced=forced, is_cell_lost=True) == "attempts_of_lost_cells"
        assert owner(own, state, forced=forced, exclusive=Exclusive.STRICT) == rule
        strict: dict[str, Any] = {"exclusive": Exclusive.STRICT, "is_cell_lost": True}
        assert owner(own, state, forced=forced, **strict) == "held_attempts"


def test_running_strict_attempt_on_a_lost_cell_is_owned_by_the_loss_rule() -> None:
    strict: dict[str, Any] = {"exclusive": Exclusive.STRICT, "is_cell_lost": True}
    assert owner(S.RUNNING, S.RUNNING, **strict) == "attempts_of_lost_cells"
    lease: dict[str, Any] = {"exclusive": Exclusive.LEASE, "is_cell_lost": True}
    assert owner(S.PENDING, S.FAILED, **lease) == "attempts_of_lost_cells"


@pytest.mark.parametrize("state", [S.PENDING, *sorted(ACTIVE)])
def test_ending_job_takes_precedence_over_other_rules(state: S) -> None:
    held_by = None if state is S.PENDING else state
    assert owner(state, held_by, is_job_ending=True, has_deadline=True) == "ending_jobs"


def test_pending_task_waits_for_jobs_then_groups_then_placement() -> None:
    def pending(**circumstances: Any) -> str | None:
        return owner(S.PENDING, **circumstances)

    assert pending(waits_for_jobs=True, is_group_startable=False) == "blocked_jobs"
    assert pending(is_group_startable=False, has_deadline=True) == "waiting_jobs"
    assert pending(has_deadline=True) == "unplaced"
    assert pending(has_deadline=True, waits_for_jobs=True, is_held=True) == ""
    assert pending() == "placement"
    assert owner(S.PENDING, S.FAILED, released=True) == "placement"


def test_owner_facts_default_to_an_ordinary_task() -> None:
    facts = task(S.PENDING)
    assert OwnerFacts(facts) == OwnerFacts(
        facts,
        is_cell_lost=False,
        is_job_ending=False,
        is_job_requeuing=False,
        waits_for_jobs=False,
        is_group_startable=True,
        has_deadline=False,
        has_timeout=False,
    )


def test_owner_rules_and_their_bounds_are_as_listed() -> None:
    assert [(row.rule, row.is_bounded) for row in TASK_OWNERS] == [
        ("ending_jobs", True),
        ("held_attempts", False),
        ("attempts_of_lost_cells", True),
        ("unconfirmed_stops", True),
        ("stuck_stops", False),
        ("requeuing_jobs", True),
        ("unanswered", True),
        ("silent_leases", False),
        ("stuck_builds", True),
        ("overruns", True),
        ("silent_leases", False),
        ("", False),  # held
        ("blocked_jobs", False),
        ("waiting_jobs", False),
        ("unplaced", True),
        ("placement", False),
    ]
    assert all(row.holds for row in TASK_OWNERS)


def test_jobs_and_cells_have_owners_too() -> None:
    assert [(row.rule, row.is_bounded) for row in OTHER_OWNERS] == [
        ("orphaned_jobs", True),
        ("unsettled_jobs", True),
        ("recount", False),
        ("stored_totals", False),
        ("orphans", False),
        ("freed_attempts", True),
        ("images", True),
        ("cache_lookups", True),
        ("cache_waiters", True),
        ("cache_stores", True),
        ("old_entries", True),
        ("cache_size", False),
        ("resolving", True),
        ("claimed_callbacks", True),
        ("stale_sessions", True),
        ("quiet_alerts", True),
        ("expired_jobs", True),
        ("old_records", True),
        ("uncounted_sizes", True),
        ("uncounted_usage", True),
        ("orphan_files", False),
        ("key_rotations", True),
        ("samples", False),
        ("bulk_operations", True),
        ("due_schedules", True),
        ("ready_firings", True),
        ("deleted_jobs", True),
        ("silent_leases", True),
        ("held_losses", False),
        ("failing_cells", False),
        ("cleared_cells", False),
        ("drained", False),
        ("", False),
        ("", False),
    ]
    assert not any(row.holds for row in OTHER_OWNERS)
