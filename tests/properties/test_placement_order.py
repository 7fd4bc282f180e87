"""The order of placement: as one task after the other by the rule, for every sequencer."""

from collections import Counter
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.constraints import is_met
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.scopes import ScopeKind, ScopeLimits
from tests.properties.placement_worlds import WorldOptions, worlds
from tests.properties.plain_placement import OF_CELLS, Plain, lines
from tests.unit.domain.placement.pools import Outcome, Pool, cell, pool, quota, row, run

MANY = settings(max_examples=100)
FIXED = ("fifo", "lifo")


class OneByOne:
    """Places tasks one after the other, by the text of the sequencers and selectors."""

    def __init__(self, waited: Pool) -> None:
        self.now, self.rows = Plain(waited), waited.rows
        self.policy = waited.snapshot.policy
        self.shapes = waited.facts.waiting.shape_ids
        self.names = [one.name for one in waited.snapshot.cells]
        self.found: Counter[tuple[int, int]] = Counter()
        behind = [n for n, name in enumerate(self.names) if name > self.policy.cursor]
        self.start = behind[0] if behind and self.policy.cursor else 0

    def place(self) -> Counter[tuple[int, int]]:
        """How many of each row go to each cell."""
        for band in sorted({one.shape.band for one in self.rows}):
            mine = [n for n, one in enumerate(self.rows) if one.shape.band == band]
            if self.policy.sequencer == "lifo":
                mine.sort(key=lambda n: -self.rows[n].job_id)
            mine.sort(key=lambda n: not self.rows[n].is_child)
            for turn in self._turns(mine):
                got: Counter[int] = Counter()
                for place in turn:
                    if not self._place(place, got):
                        return self.found
        return self.found

    def _turns(self, order: list[int]) -> list[list[int]]:
        """Return consecutive rows of one shape as one turn, except the special ones."""
        turns: list[list[int]] = []
        for place in order:
            if turns and self.shapes[turns[-1][0]] == self.shapes[place]:
                turns[-1].append(place)
            else:
                turns.append([place])
        found = []
        for turn in turns:
            by_job = any(
                account.quota.limits.running_jobs is not None
                for account in self.now.accounts_of(self.rows[turn[0]])
            )
            is_alone = by_job or any(self.rows[n].avoid_cell_ids is not None for n in turn)
            found += [[place] for place in turn] if is_alone else [turn]
        return found

    def _place(self, place: int, got: Counter[int]) -> bool:
        """Place what can be placed of a row; return whether rows behind it may be tried."""
        while self.now.left[place]:
            hindrance = self.now.hindrance(place)
            if hindrance is not None:
                return not (self.policy.strict_fifo and hindrance["code"] in OF_CELLS)
            cell_id = self._choose(place, got)
            got[cell_id] += 1
            self.found[place, cell_id] += 1
            self.now.put(place, cell_id)
        return True

    def _choose(self, place: int, got: Counter[int]) -> int:
        one = self.rows[place]
        preferred = [c for c in one.shape.constraints if not c.required]

        def rank(cell_id: int) -> int:
            return sum(is_met(c, self.now.cells[cell_id].labels) for c in preferred)

        free = [item.cell_id for item in self.now.open_cells(place)]
        best = max(map(rank, free))
        free = [cell_id for cell_id in free if rank(cell_id) == best]
        index = {item.cell_id: n for n, item in enumerate(self.now.cells.values())}
        match self.policy.selector:
            case "dispersed":
                return min(
                    free, key=lambda c: (self._utilisation(c), -self._size(c), got[c], index[c])
                )
            case "concentrated":
                return min(free, key=lambda c: (-self._utilisation(c), self._size(c), index[c]))
        count = len(index)
        chosen = min(free, key=lambda c: (index[c] - self.start) % count)
        self.start = (index[chosen] + 1) % count
        return chosen

    def _utilisation(self, cell_id: int) -> Fraction:
        """The share in use of the cell's scarcest resource, before the task is on it."""
        used = self.now.used[cell_id]
        return max(
            (
                Fraction(used.get(name, 0), most)
                for name, most in self.now.cells[cell_id].capacity.items()
                if most
            ),
            default=Fraction(0),
        )

    def _size(self, cell_id: int) -> Fraction:
        """The sum of the shares that the cell has of all cells' capacity."""
        cells = self.now.cells
        return sum(
            (
                Fraction(most, sum(cell.capacity.get(name, 0) for cell in cells.values()))
                for name, most in cells[cell_id].capacity.items()
                if most
            ),
            Fraction(0),
        )


def _check_as_one_by_one(waited: Pool) -> None:
    """As many of each row, and of each shape on each cell.

    Which rows of one turn go to which of its cells is all the same to everybody.
    """
    placed: Counter[tuple[int, int]] = Counter()
    for place, cell_id, count in lines(waited, waited.place()):
        placed[place, cell_id] += count
    expected = OneByOne(waited).place()
    shapes = waited.facts.waiting.shape_ids
    for name in (lambda place, cell_id: place, lambda place, cell_id: (shapes[place], cell_id)):
        sums: list[Counter[object]] = [Counter(), Counter()]
        for sum_, found in zip(sums, (placed, expected), strict=True):
            for key, count in found.items():
                sum_[name(*key)] += count
        assert sums[0] == sums[1]


@MANY
@given(
    worlds(
        WorldOptions(
            gangs=False,
            nominations=False,
            sequencers=FIXED,
            selectors=("dispersed", "concentrated"),
        )
    )
)
def test_pass_equals_placing_one_task_after_another(waited: Pool) -> None:
    _check_as_one_by_one(waited)


@MANY
@given(
    worlds(
        WorldOptions(
            gangs=False,
            nominations=False,
            preferences=False,
            sequencers=FIXED,
            selectors=("round_robin",),
        )
    )
)
def test_round_robin_pass_equals_placing_one_task_after_another(waited: Pool) -> None:
    _check_as_one_by_one(waited)


# ------------------------------------------------------------------------------------ shares


@st.composite
def rivals(draw: st.DrawFn, sequencer: str) -> tuple[Pool, dict[int, float]]:
    """Owners with equal requests, some usage and weights."""
    cells = [cell(n, cpu=draw(st.integers(0, 20)), memory=100) for n in range(1, 4)]
    owners = range(1, draw(st.integers(2, 4)) + 1)
    weights = {owner: draw(st.sampled_from([1.0, 1.0, 2.0, 0.25])) for owner in owners}
    rows = [
        row(
            n,
            draw(st.integers(1, 12)),
            owner_id=draw(st.sampled_from(owners)),
            is_child=draw(st.booleans()),
            resources={"cpu_millis": 2, "memory_mib": 1},
        )
        for n in range(1, draw(st.integers(1, 8)) + 1)
    ]
    holds = {owner: {"cpu_millis": draw(st.integers(0, 9))} for owner in owners}
    quotas = tuple(
        quota(ScopeKind.USER, owner, ScopeLimits(weight=weight))
        for owner, weight in weights.items()
    )
    policy = PoolPolicy(sequencer=sequencer)
    waited = pool(cells, *rows, policy=policy, quotas=quotas, owner_usage=holds)
    return waited, weights


def _check_shares(waited: Pool, weights: dict[int, float], limit: int) -> None:
    """Check that no owner got a task while an owner with a smaller share waited."""
    total = {
        name: sum(one.capacity[name] for one in waited.snapshot.cells)
        for name in ("cpu_millis", "memory_mib")
    }
    plan = waited.place(limit)
    got: Counter[int] = Counter()
    left = [one.count for one in waited.rows]
    for place, _, count in lines(waited, plan):
        got[waited.rows[place].shape.owner_id] += count
        left[place] -= count
    waits = {one.shape.owner_id for one, n in zip(waited.rows, left, strict=True) if n}

    def share(owner: int, tasks: int) -> float:
        held = waited.snapshot.owner_usage[owner]["cpu_millis"] + 2 * tasks
        return max(held / total["cpu_millis"], tasks / total["memory_mib"]) / weights[owner]

    for winner in +got:
        for loser in waits - {winner}:
            assert share(winner, got[winner] - 1) <= share(loser, got[loser]) + 1e-9
    for owner in weights:
        mine = [n for n, one in enumerate(waited.rows) if one.shape.owner_id == owner]
        mine.sort(key=lambda n: not waited.rows[n].is_child)
        untouched = [left[n] == waited.rows[n].count for n in mine]
        # FIFO within an owner, children first: behind the first that waits nothing was placed.
        first = next((k for k, n in enumerate(mine) if left[n]), len(mine))
        assert all(untouched[first + 1 :])


@MANY
@given(rivals("drf"), st.integers(1, 40))
def test_drf_shares_differ_by_at_most_one_task(
    case: tuple[Pool, dict[int, float]], limit: int
) -> None:
    waited, weights = case
    _check_shares(waited, dict.fromkeys(weights, 1.0), limit)


@MANY
@given(rivals("fair_share"), st.integers(1, 40))
def test_fair_share_differs_by_at_most_one_task_by_weight(
    case: tuple[Pool, dict[int, float]], limit: int
) -> None:
    _check_shares(*case, limit)


KINDS = (
    {"cpu_millis": 1, "memory_mib": 4},
    {"cpu_millis": 3, "memory_mib": 1},
    {"cpu_millis": 0, "memory_mib": 7},
)


@MANY
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 60)), max_size=9),
    st.lists(st.sampled_from(KINDS), min_size=4, max_size=4),
    st.integers(1, 120),
    st.sampled_from([1, 3]),
)
def test_drf_always_serves_the_owner_with_the_smallest_share(
    jobs: list[tuple[int, int]], kinds: list[dict[str, int]], limit: int, number: int
) -> None:
    """For any requests of the owners, while there is room for all: the pass ends at its limit."""
    total = {"cpu_millis": 3000, "memory_mib": 6000}
    each = {name: amount // number for name, amount in total.items()}
    rows = [
        row(n, count, owner_id=owner, resources=kinds[owner - 1])
        for n, (owner, count) in enumerate(jobs, 1)
    ]
    cells = [cell(n, capacity=each) for n in range(1, number + 1)]
    waited = pool(cells, *rows, policy=PoolPolicy(sequencer="drf"))
    outcome = Outcome(waited, waited.place(limit))
    got = outcome.placed
    assert sum(got.values()) == min(limit, sum(count for _, count in jobs))

    def share(owner: int, but: int | None = None) -> float:
        mine = [n for n, (his, _) in enumerate(jobs, 1) if his == owner]
        tasks = sum(got.get(n, 0) - (n == but) for n in mine)
        return max(tasks * kinds[owner - 1][name] / total[name] for name in total)

    last = {owner: n for n, (owner, *_) in enumerate(jobs, 1) if got.get(n)}
    waits = {owner for n, (owner, count) in enumerate(jobs, 1) if got.get(n, 0) < count}
    for winner, n in last.items():
        assert all(share(winner, n) <= share(loser) + 1e-9 for loser in waits - {winner})


def test_the_example_of_the_paper_on_drf() -> None:
    """9 cpus and 18 GB; A requests 1 and 4, B 3 and 1: A gets 3 tasks, B 2 (Ghodsi et al.)."""
    one = cell(1, capacity={"cpu_millis": 9, "memory_mib": 18})
    rows = [
        row(1, 9, owner_id=1, resources={"cpu_millis": 1, "memory_mib": 4}),
        row(2, 9, owner_id=2, resources={"cpu_millis": 3, "memory_mib": 1}),
    ]
    outcome: Outcome = run([one], *rows, policy=PoolPolicy(sequencer="drf"))
    assert outcome.placed == {1: 3, 2: 2}


def test_equal_users_get_equal_shares_in_any_submission_order() -> None:
    rows = [row(n, 100, owner_id=n) for n in (1, 2, 3)]
    for sequencer in ("drf", "fair_share"):
        outcome = run([cell(1, cpu=31_000)], *rows, policy=PoolPolicy(sequencer=sequencer))
        assert sorted(outcome.placed.values()) == [10, 10, 11]
    outcome = run([cell(1, cpu=30_000)], *rows)
    assert outcome.placed == {1: 30}
