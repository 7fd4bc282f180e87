"""Every waiting task has a true reason: the pool at some moment of the plan confirms it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given, settings

from controlplane.domain.placement.cycle.plan import PlacementPlan
from controlplane.domain.placement.cycle.prefilter import screen
from tests.properties.placement_worlds import WorldOptions, worlds
from tests.properties.plain_placement import PLENTY, Plain, bare, lines, need_of
from tests.unit.domain.placement.pools import Outcome, Pool, Row, pool

MANY = settings(max_examples=100)


def moments(waited: Pool, plan: PlacementPlan) -> Iterator[Plain]:
    """The books before the first task is placed, and after each line of the plan."""
    now = Plain(waited)
    yield now
    for line in lines(waited, plan):
        now.put(*line)
        yield now


def violations_of(reason: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What stands against a task, one by one; there is something."""
    assert reason["violations"]
    return list(reason["violations"])


@MANY
@given(worlds(WorldOptions(gangs=False)))
def test_every_pending_task_has_a_reason_that_was_true_when_found(waited: Pool) -> None:
    outcome = Outcome(waited, waited.place())
    rejected = {item.group_id: item.reason for item in outcome.plan.rejected}
    explained = rejected | outcome.reasons
    for reason in rejected.values():
        # Of all that stands against it, what ends it is what time cannot cure.
        assert all(one["requested"] > one["limit"] for one in violations_of(reason))
    *_, after = moments(waited, outcome.plan)
    open_shapes: dict[int, list[int]] = {}
    for place, left in enumerate(after.left):
        if left:
            assert waited.rows[place].group_id in explained
            shape = waited.facts.waiting.shape_ids[place]
            open_shapes.setdefault(shape, []).append(place)
    for places in open_shapes.values():
        reason = dict(explained[waited.rows[places[0]].group_id])
        assert reason["text"]
        if reason["code"] == "queue_position":
            assert waited.snapshot.policy.strict_fifo
            continue
        assert any(
            now.hindrance(place) == bare(reason)
            for now in moments(waited, outcome.plan)
            for place in places
        )


@MANY
@given(worlds(WorldOptions(gangs=False)))
def test_strict_pool_names_the_job_in_front_which_has_no_room(waited: Pool) -> None:
    waited = waited.with_policy(strict_fifo=True)
    outcome = Outcome(waited, waited.place())
    behind = {one["behind"] for one in outcome.reasons.values() if "behind" in one}
    assert len(behind) <= 1
    *_, after = moments(waited, outcome.plan)
    for job in behind:
        mine = [place for place, one in enumerate(waited.rows) if one.job_id == job]
        found = [after.hindrance(place, claims=True) for place in mine if after.left[place]]
        assert any(
            one and one["code"] in ("insufficient_resources", "no_cell_matches", "build_slots_full")
            for one in found
        )


def _alone(waited: Pool) -> Pool:
    """One row for each shape, of a new job, that avoids nothing; no room is kept."""
    rows = [
        Row(shape.shape_id, -1, 1, replace(shape, shape_id=0, count=0))
        for shape in waited.snapshot.shapes
    ]
    facts = waited.snapshot
    return replace(
        pool(
            facts.cells,
            policy=facts.policy,
            quotas=facts.quotas,
            tokens_used=facts.tokens_used,
            key_usage=facts.key_usage,
        ),
        rows=tuple(rows),
    )


@MANY
@given(worlds())
def test_screening_reason_is_true_before_anything_is_placed(waited: Pool) -> None:
    screened = waited.screen()
    alone = _alone(waited)
    now = Plain(alone)
    reasons = {item.shape_id: item.reason for item in screened.reasons}
    for place, shape in enumerate(waited.snapshot.shapes):
        hindrance = now.hindrance(place)
        if shape.shape_id in reasons:
            assert bare(reasons[shape.shape_id]) == hindrance
        elif shape.shape_id not in screened.full:
            raise AssertionError("neither read nor explained")
        elif not (waited.snapshot.policy.strict_fifo or shape.coscheduled):
            # It is read because it may be placed, or to be rejected group by group.
            violations = hindrance["violations"] if hindrance else []
            assert hindrance is None or any(
                item["requested"] > item["limit"] for item in violations
            )


# Where turns are cut otherwise, ties between cells that lie even may be broken otherwise; so only
# plugins for which it is all the same.
UNCUT = WorldOptions(
    gangs=False,
    nominations=False,
    preferences=False,
    sequencers=("fifo", "lifo"),
    selectors=("concentrated", "round_robin"),
)


@MANY
@given(worlds(UNCUT))
def test_pass_after_screening_places_the_same(waited: Pool) -> None:
    waited = waited.with_policy(strict_fifo=False)
    screened = screen(waited.snapshot, waited.plugins)
    shapes = dict(zip(waited.facts.waiting.group_ids, waited.facts.waiting.shape_ids, strict=True))
    kept = [
        one
        for one in waited.rows
        if shapes[one.group_id] in screened.full
        or (shapes[one.group_id] in screened.of_running and Plain(waited).is_running(one))
    ]
    facts = waited.snapshot
    again = pool(
        facts.cells,
        *kept,
        policy=facts.policy,
        quotas=facts.quotas,
        tokens_used=facts.tokens_used,
        owner_usage=facts.owner_usage,
        key_usage=facts.key_usage,
    )
    expected, found = Outcome(waited, waited.place()), Outcome(again, again.place())
    assert found.placed == expected.placed
    assert found.per_cell == expected.per_cell


@MANY
@given(worlds(WorldOptions(nominations=False)))
def test_pending_gang_reason_has_needed_and_placeable_counts(waited: Pool) -> None:
    waited = waited.with_policy(strict_fifo=False)
    outcome = Outcome(waited, waited.place())
    rejected = {item.group_id for item in outcome.plan.rejected}
    *_, after = moments(waited, outcome.plan)
    for job, gang in waited.facts.gangs.items():
        mine = [place for place, one in enumerate(waited.rows) if one.job_id == job]
        need = need_of(gang)
        if (
            not need
            or not mine
            or sum(after.left[p] for p in mine) < sum(waited.rows[p].count for p in mine)
        ):
            continue
        for place in mine:
            reason = outcome.reasons[waited.rows[place].group_id]
            if waited.rows[place].group_id in rejected:
                continue
            assert (reason["code"], reason["need"]) == ("waiting_for_gang", need)
            assert 0 <= reason["have"] <= need
            assert f"{need} more" in reason["text"]
            assert f"{reason['have']} could be" in reason["text"]


@MANY
@given(worlds(WorldOptions(nominations=False)))
def test_pending_gang_of_one_row_would_not_have_fit(waited: Pool) -> None:
    waited = waited.with_policy(strict_fifo=False)
    outcome = Outcome(waited, waited.place())
    for job, gang in waited.facts.gangs.items():
        mine = [place for place, one in enumerate(waited.rows) if one.job_id == job]
        if len(mine) != 1 or gang.cell_ids:
            continue
        *_, after = moments(waited, outcome.plan)
        need = need_of(gang)
        if not need or after.left[mine[0]] < waited.rows[mine[0]].count:
            continue
        labels = {cell.labels.get("zone") for cell in waited.snapshot.cells} - {None}
        for value in labels if gang.group_by else [None]:
            assert _most(after, mine[0], value) < need


def _most(now: Plain, place: int, zone: str | None) -> int:
    """How many tasks of the row could be placed from now on in a zone, one after the other."""
    trial = Plain(now.pool)
    trial.used = {cell: dict(used) for cell, used in now.used.items()}
    # Members that must be there at once are placed at once, whatever their cells prepare.
    trial.slots, trial.tokens = dict.fromkeys(now.slots, PLENTY), dict(now.tokens)
    for mine, his in zip(trial.accounts, now.accounts, strict=True):
        mine.resources, mine.tasks, mine.jobs = dict(his.resources), his.tasks, set(his.jobs)
    trial.left = list(now.left)
    count = 0
    while trial.left[place] and not trial.violations(now.pool.rows[place]):
        open_cells = [
            cell
            for cell in trial.open_cells(place)
            if zone is None or cell.labels.get("zone") == zone
        ]
        if not open_cells or trial.short_tokens(now.pool.rows[place]):
            break
        trial.put(place, open_cells[0].cell_id)
        count += 1
    return count
