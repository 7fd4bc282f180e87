"""Every task that is not done has an owner, and what has a bound ends when the clock advances."""

from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path

import pytest

from controlplane.commands.convergence.late_tasks import EndLateTasks
from controlplane.commands.convergence.rules import RULES as ALL_RULES
from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.endings import decide_ended, decide_gang_requeue
from controlplane.domain.convergence.owners import (
    OTHER_OWNERS,
    TASK_OWNERS,
    Owner,
    OwnerFacts,
    find_owner,
)
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.states import (
    ACTIVE,
    ATTEMPT_STATES,
    OPEN,
    TERMINAL,
    Exclusive,
    Reason,
)
from controlplane.queries.convergence.due import SOURCES
from tests.harness.domain import facts
from tests.harness.domain.facts import NOW

LONG = timedelta(days=400)
LATER = NOW + LONG
RULES = {rule.name: rule.run.rule for rule in ALL_RULES if isinstance(rule.run, EndLateTasks)}
FLAGS = [field.name for field in fields(OwnerFacts) if field.name != "facts"]

# How task and attempt may stand together (INV-2, INV-3): active ones alike; else it has ended.
_PAIRS = [(state, state) for state in ACTIVE] + [
    (task, attempt)
    for task in S
    if task not in ACTIVE
    for attempt in (*sorted(ATTEMPT_STATES & TERMINAL), None)
]


def every_task() -> Iterator[OwnerFacts]:
    """All there can be, and some that cannot."""
    for (task, attempt), once, exclusive in product(_PAIRS, (False, True), Exclusive):
        releases = (None,) if attempt in ACTIVE or attempt is None else (None, NOW)
        forced = (False,) if attempt in ACTIVE or attempt is None else (False, True)
        for released_at, releasable_at, is_forced in product(releases, (None, LATER), forced):
            found = facts_of(task, attempt, released_at)
            if found.attempt is not None:
                present = replace(
                    found.attempt, releasable_at=releasable_at, is_stop_forced=is_forced
                )
                found = replace(found, attempt=present)
            found = replace(found, at_most_once=once, exclusive=exclusive)
            for flags in product((False, True), repeat=len(FLAGS)):
                yield OwnerFacts(found, **dict(zip(FLAGS, flags, strict=True)))


def facts_of(state: S, attempt: S | None, released_at: datetime | None) -> TaskFacts:
    present = None if attempt is None else facts.attempt(attempt, released_at=released_at)
    return facts.task(state, present)


def is_done(task: OwnerFacts) -> bool:
    return task.facts.state in TERMINAL and task.attempt is None


def decide(owner: Owner, task: OwnerFacts, now: datetime) -> ChangeTask:
    """What the owner's rule makes of the task."""
    if owner.rule == "ending_jobs":
        return decide_ended(task.facts, reason=Reason.CANCELLED, message="", force=False, now=now)
    if owner.rule == "requeuing_jobs":
        return decide_gang_requeue(task.facts, stop_seconds=10.0, now=now)
    rule = RULES[owner.rule]
    assert rule.is_due(task.facts, now), f"{owner.what}: {owner.rule} does not hold"
    return rule.decide(task.facts, now=now)


def after(task: OwnerFacts, change: ChangeTask, now: datetime) -> OwnerFacts:
    """The task once the change is applied."""
    attempt = task.facts.attempt
    if attempt is not None and change.attempt is not None:
        attempt = replace(
            attempt,
            state=change.attempt.state_to,
            released_at=now if change.attempt.release else None,
            releasable_at=attempt.releasable_at or change.attempt.releasable_at,
            is_stop_forced=attempt.is_stop_forced or change.attempt.stop_force,
        )
    found = replace(task.facts, state=change.task_to, attempt=attempt, counters=change.counters)
    return replace(task, facts=found)


def test_every_unfinished_task_has_an_owner() -> None:
    count = 0
    for task in every_task():
        count += 1
        assert (find_owner(task) is None) == is_done(task), task
    assert count > 10_000


def test_task_with_a_bounded_owner_ends_as_the_clock_advances() -> None:
    """Owner by owner, until it is done or waits for what no clock brings."""
    for task in every_task():
        now, course = NOW, [task]
        while (owner := find_owner(course[-1])) is not None and owner.is_bounded:
            assert len(course) < 6, course
            now += LONG
            course.append(after(course[-1], decide(owner, course[-1], now), now))
            assert course[-1].facts != course[-2].facts, (owner.what, course)


def test_open_task_of_an_ending_job_always_has_a_bounded_owner() -> None:
    for task in every_task():
        if task.is_job_ending and task.facts.state in OPEN:
            owner = find_owner(task)
            assert owner is not None
            assert owner.is_bounded


def test_cell_is_suspected_only_after_a_forced_stop() -> None:
    """Whatever ended and is not gone: the stop is forced first, and that once."""
    stops = [task for task in every_task() if find_rule(task) == "stuck_stops"]
    assert stops
    assert all(task.facts.attempt and task.facts.attempt.is_stop_forced for task in stops)
    unforced = [task for task in every_task() if find_rule(task) == "unconfirmed_stops"]
    assert unforced
    for task in unforced:
        owner = find_owner(task)
        assert owner is not None
        change = decide(owner, task, NOW)
        assert (change.task_to, change.counters) == (task.facts.state, task.facts.counters)
        assert find_rule(after(task, change, NOW)) == "stuck_stops"


def find_rule(task: OwnerFacts) -> str | None:
    owner = find_owner(task)
    return owner.rule if owner else None


def test_only_declared_states_may_last() -> None:
    lasting = [owner for owner in (*TASK_OWNERS, *OTHER_OWNERS) if not owner.is_bounded]
    for owner in lasting:
        known = ("checked", "no limit", "stop grace")
        assert owner.longest.startswith(known), owner.what


@pytest.mark.parametrize("owner", [*TASK_OWNERS, *OTHER_OWNERS], ids=lambda owner: owner.what)
def test_each_owner_names_an_existing_rule(owner: Owner) -> None:
    assert owner.rule in {*SOURCES, "placement", ""}


def test_each_rule_owns_a_state() -> None:
    assert set(SOURCES) <= {owner.rule for owner in (*TASK_OWNERS, *OTHER_OWNERS)}


def test_each_source_is_scanned_by_one_rule() -> None:
    scanned_at = [source for rule in ALL_RULES for source in rule.due]
    assert sorted(scanned_at) == sorted(SOURCES)


def test_convergence_page_lists_the_rules_in_order() -> None:
    page = Path(__file__).parents[2] / "docs" / "convergence.md"
    lines = page.read_text().split("## The rules, in order")[1].split("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "| `" in line]
    listed = [(int(no), name.strip("`"), waits, wake) for no, name, _, _, waits, wake in cells]
    assert listed == [
        (rule.number, rule.name, "yes" * rule.waits, "yes" * rule.on_wake) for rule in ALL_RULES
    ]
