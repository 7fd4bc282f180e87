"""The rules of placement once more, in plain words: one task after the other, dicts and loops.

Written down from the text (docs and docstrings), with nothing of what places: neither its arrays
nor its turns. `Plain` also replays a plan, task by task, to derive the reasons at each point.
"""

from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from controlplane.domain.constraints import is_met
from controlplane.domain.placement.cycle.plan import PlacementPlan
from controlplane.domain.placement.model.snapshot import CellFacts, GangFacts
from controlplane.domain.scopes import Quota, ScopeKind
from tests.unit.domain.placement.pools import Pool, Row

PLENTY = 10**9
OF_CELLS = ("no_cell_matches", "insufficient_resources", "build_slots_full")


@dataclass
class Account:
    """A quota and what is used of it."""

    quota: Quota
    resources: dict[str, int]
    tasks: int
    jobs: set[int]
    nominated_jobs: set[int] = field(default_factory=set)


@dataclass
class Plain:
    """The state of a pool at one point of a pass. `left`: by row, how many wait.

    `claims`: by row, for how many room is kept, which a task frees when it finds another place.
    """

    pool: Pool
    used: dict[int, dict[str, int]] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    started: dict[tuple[int, int], int] = field(default_factory=dict)
    accounts: list[Account] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    claims: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        snapshot = self.pool.snapshot
        self.cells = {one.cell_id: one for one in snapshot.cells}
        self.used = {one.cell_id: dict(one.used) for one in snapshot.cells}
        self.slots = {
            one.cell_id: PLENTY if one.start_slots is None else one.start_slots
            for one in snapshot.cells
        }
        self.tokens = {name: snapshot.tokens_used.get(name, 0) for name in snapshot.policy.tokens}
        self.held = {one.key_id: one.held for one in snapshot.key_usage}
        self.started = {
            (one.key_id, seconds): count
            for one in snapshot.key_usage
            for seconds, count in one.started.items()
        }
        self.accounts = [
            Account(quota, dict(quota.resources), quota.running_tasks, set(quota.jobs))
            for quota in snapshot.quotas
        ]
        self.left = [one.count for one in self.pool.rows]
        self.claims = list(self.left)

    # ------------------------------------------------------------------------------ the books

    def put(self, place: int, cell_id: int, count: int = 1) -> None:
        """Tasks of a row go to a cell."""
        one = self.pool.rows[place]
        self.left[place] -= count
        if cell_id == one.nominated_cell_id:
            self.claims[place] -= count
        self.slots[cell_id] -= count
        for name, amount in one.shape.resources.items():
            if name not in self.tokens:
                used = self.used[cell_id]
                used[name] = used.get(name, 0) + amount * count
        self._count(one, count)
        for account in self.accounts_of(one):
            account.jobs.add(one.job_id)

    def _count(self, one: Row, count: int) -> None:
        """So many of its tasks count against quotas and tokens, and hold its concurrency key."""
        if one.shape.concurrency is not None:
            key = one.shape.concurrency.key_id
            self.held[key] += count
            for other, seconds in self.started:
                if other == key:
                    self.started[key, seconds] += count
        for name, amount in one.shape.resources.items():
            if name in self.tokens:
                self.tokens[name] += amount * count
        for account in self.accounts_of(one):
            account.tasks += count
            for name, amount in one.shape.resources.items():
                account.resources[name] = account.resources.get(name, 0) + amount * count

    def accounts_of(self, one: Row) -> list[Account]:
        """Quotas of the row's user, project and domain."""
        keys = {
            ScopeKind.USER: one.shape.owner_id,
            ScopeKind.PROJECT: one.shape.project_id,
            ScopeKind.DOMAIN: one.shape.domain_id,
        }
        return [
            item for item in self.accounts if keys[item.quota.scope.kind] == item.quota.scope.key
        ]

    # ----------------------------------------------------------------------------- the cells

    def matches(self, one: Row, cell: CellFacts) -> bool:
        """Whether the row's tasks may run on the cell at all, whatever room it has."""
        named = set(one.shape.placement_tags)
        return (
            one.shape.task_type in cell.task_types
            and all(is_met(c, cell.labels) for c in one.shape.constraints if c.required)
            and cell.tags.required <= named
            and named <= cell.tags.required | cell.tags.optional
        )

    def request_of(self, one: Row) -> dict[str, int]:
        """What a task takes of its cell."""
        return {
            name: amount
            for name, amount in one.shape.resources.items()
            if amount and name not in self.tokens
        }

    def fits(self, one: Row, cell_id: int, kept: dict[int, dict[str, int]]) -> bool:
        """Whether one task of the row fits beside what is used and kept."""
        used, more = self.used[cell_id], kept.get(cell_id, {})
        return all(
            used.get(name, 0) + more.get(name, 0) + amount <= self.capacity(cell_id, name)
            for name, amount in self.request_of(one).items()
        )

    def capacity(self, cell_id: int, name: str) -> int:
        """How much of a resource a cell has."""
        return self.cells[cell_id].capacity.get(name, 0)

    def usable(self, one: Row) -> list[CellFacts]:
        """The cells that may take the row's tasks: none that it avoids, if another ever could.

        Else not the last one of these that is there, if another ever could; else all.
        """
        found = [cell for cell in self.cells.values() if self.matches(one, cell)]
        avoided = [cell_id for cell_id in one.avoid_cell_ids or () if cell_id in self.cells]
        none_of_them = [cell for cell in found if cell.cell_id not in avoided]
        if any(self._ever(one, cell) for cell in none_of_them):
            return none_of_them
        not_the_last = [cell for cell in found if [cell.cell_id] != avoided[-1:]]
        if any(self._ever(one, cell) for cell in not_the_last):
            return not_the_last
        return found

    def _ever(self, one: Row, cell: CellFacts) -> bool:
        return all(
            amount <= cell.capacity.get(name, 0) for name, amount in self.request_of(one).items()
        )

    def kept_for(
        self, one: Row, *, but: int | None = None, claims: bool = False
    ) -> dict[int, dict[str, int]]:
        """By cell, what is kept for nominated rows of the row's own or more important bands."""
        kept: dict[int, dict[str, int]] = {}
        for other, cell_id, count in self._kept_rows(one, but, claims):
            here = kept.setdefault(cell_id, {})
            for name, amount in self.request_of(other).items():
                here[name] = here.get(name, 0) + amount * count
        return kept

    def _kept_rows(self, one: Row, but: int | None, claims: bool) -> Iterator[tuple[Row, int, int]]:
        counts = self.claims if claims else self.left
        for place, other in enumerate(self.pool.rows):
            cell_id = other.nominated_cell_id
            if place == but or cell_id is None or other.shape.band > one.shape.band:
                continue
            if counts[place]:
                yield other, cell_id, counts[place]

    def with_kept(self, place: int, *, claims: bool = False, is_in_turn: bool = False) -> "Plain":
        """The same, but what is kept for others of the row's bands is taken from quotas, tokens.

        `is_in_turn`: only what is kept for rows before it. Reservations may exceed a limit together
        (it was lowered, for example); then the first ones are used.
        """
        one, other = self.pool.rows[place], copy(self)
        other.accounts, other.tokens = deepcopy(self.accounts), dict(self.tokens)
        other.held, other.started = dict(self.held), dict(self.started)
        before = self.pool.rows[:place] if is_in_turn else self.pool.rows
        for row, _, count in self._kept_rows(one, place, claims):
            if any(row is one_before for one_before in before):
                other._count(row, count)
                for account in other.accounts_of(row):
                    account.nominated_jobs.add(row.job_id)
        return other

    def open_cells(self, place: int) -> list[CellFacts]:
        """The cells that take one more task of the row now."""
        one = self.pool.rows[place]
        kept = self.kept_for(one, but=place)
        return [
            cell
            for cell in self.usable(one)
            if self.slots[cell.cell_id] > 0 and self.fits(one, cell.cell_id, kept)
        ]

    # --------------------------------------------------------------------------- the reasons

    def hindrance(self, place: int, *, claims: bool = False) -> dict[str, Any] | None:
        """Why one more task of the row cannot be placed now: the reason without its text."""
        one, plain = self.pool.rows[place], self.with_kept(place, claims=claims)
        if violations := plain.violations(one):
            return {**violations[0], "violations": violations}
        if short := plain.short_tokens(one):
            return {"code": "insufficient_tokens", "tokens": short}
        if full := plain.full_key(one):
            return full
        kept = self.kept_for(one, but=place, claims=claims)
        return self._cells_against(one, self.usable(one), kept)

    def violations(self, one: Row, tasks: int = 1) -> list[dict[str, Any]]:
        """Return what `tasks` more would violate of quotas: resources by scope, then numbers."""
        found = []
        for account in self.accounts_of(one):
            for name, limit in sorted(account.quota.limits.resources.items()):
                requested = one.shape.resources.get(name, 0) * tasks
                held = account.resources.get(name, 0)
                if requested and held + requested > limit:
                    found.append(self._violation(account, name, held, requested, limit))
        for account in self.accounts_of(one):
            limits = account.quota.limits
            most = limits.running_tasks
            if most is not None and account.tasks + tasks > most:
                found.append(self._violation(account, "running_tasks", account.tasks, tasks, most))
            most, new = limits.running_jobs, not self.is_running(one)
            # A nomination counts against the jobs of others; it does not admit its own job.
            jobs = len((account.jobs | account.nominated_jobs) - {one.job_id})
            if most is not None and new and jobs + 1 > most:
                found.append(self._violation(account, "running_jobs", jobs, 1, most))
        return found

    def is_running(self, one: Row) -> bool:
        """Whether the row's job holds something."""
        return any(one.job_id in account.jobs for account in self.accounts_of(one))

    @staticmethod
    def _violation(
        account: Account, what: str, used: int, requested: int, most: int
    ) -> dict[str, Any]:
        return {
            "code": "quota_exceeded",
            "scope": account.quota.title,
            "what": what,
            "used": used,
            "requested": requested,
            "limit": most,
        }

    def short_tokens(self, one: Row) -> dict[str, dict[str, int]]:
        """Tokens of which there are too few for one more."""
        limits = self.pool.snapshot.policy.tokens
        return {
            name: {"used": self.tokens[name], "requested": amount, "limit": limits[name]}
            for name, amount in one.shape.resources.items()
            if name in limits and self.tokens[name] + amount > limits[name]
        }

    def full_key(self, one: Row) -> dict[str, Any] | None:
        """Why the concurrency key of the row's job does not admit one more task: its own limits.

        The attempts of all jobs with the key count, whatever limits these have.
        """
        rule = one.shape.concurrency
        if rule is None:
            return None
        found: dict[str, Any] = {}
        held = self.held[rule.key_id]
        if rule.limit is not None and held + 1 > rule.limit:
            found |= {"used": held, "requested": 1, "limit": rule.limit}
        if rule.starts is not None:
            started = self.started[rule.key_id, rule.starts.seconds]
            if started + 1 > rule.starts.count:
                found["starts"] = {
                    "used": started,
                    "requested": 1,
                    "limit": rule.starts.count,
                    "per_seconds": rule.starts.seconds,
                }
        return {"code": "concurrency_limit", "key": rule.key, **found} if found else None

    def _cells_against(
        self, one: Row, usable: Sequence[CellFacts], kept: dict[int, dict[str, int]]
    ) -> dict[str, Any] | None:
        if not usable:
            return self._nothing_matches(one)
        fitting = [cell for cell in usable if self.fits(one, cell.cell_id, kept)]
        if any(self.slots[cell.cell_id] > 0 for cell in fitting):
            return None
        if fitting:
            return {"code": "build_slots_full", "cells": len(fitting)}
        ever = any(self._ever(one, cell) for cell in usable)
        lacks = {
            cell.name: self._lacks(one, cell, kept) if ever else self._lacks_empty(one, cell)
            for cell in usable
        }

        def distance(cell: CellFacts) -> float:
            return max(
                lack / max(cell.capacity.get(name, 0), 1) for name, lack in lacks[cell.name].items()
            )

        best = min(usable, key=lambda cell: (distance(cell), cell.name))
        reason = {
            "code": "insufficient_resources",
            "cell": best.name,
            "shortfall": lacks[best.name],
            "never_fits": not ever,
        }
        is_kept = any(self.fits(one, cell.cell_id, {}) for cell in usable)
        return {**reason, "kept": True} if is_kept else reason

    def _lacks_empty(self, one: Row, cell: CellFacts) -> dict[str, int]:
        """What the cell would lack if it held nothing."""
        tokens = self.pool.snapshot.policy.tokens
        return {
            name: amount - cell.capacity.get(name, 0)
            for name, amount in one.shape.resources.items()
            if name not in tokens and amount > cell.capacity.get(name, 0)
        }

    def _lacks(self, one: Row, cell: CellFacts, kept: dict[int, dict[str, int]]) -> dict[str, int]:
        lacks = {}
        for name, amount in self.request_of(one).items():
            held = self.used[cell.cell_id].get(name, 0)
            held += kept.get(cell.cell_id, {}).get(name, 0)
            free = max(self.capacity(cell.cell_id, name) - held, 0)
            if amount > free:
                lacks[name] = amount - free
        return lacks

    def _nothing_matches(self, one: Row) -> dict[str, Any]:
        snapshot, removed = self.pool.snapshot, dict[str, int]()
        left = list(self.cells.values())
        kind, tags = one.shape.task_type, ", ".join(one.shape.placement_tags) or "none"
        of_kind = [cell for cell in left if kind in cell.task_types]
        conditions = [(f"task type {kind}", of_kind)]
        for constraint in one.shape.constraints:
            if constraint.required:
                meeting = [cell for cell in left if is_met(constraint, cell.labels)]
                conditions.append((str(constraint), meeting))
        admitting = [cell for cell in left if cell.tags.admit(one.shape.placement_tags)]
        conditions.append((f"placement tags {tags}", admitting))
        for words, meeting in conditions:
            kept = [cell for cell in left if cell in meeting]
            if len(kept) < len(left):
                removed[words] = removed.get(words, 0) + len(left) - len(kept)
            left = kept
        return {
            "code": "no_cell_matches",
            "ready_cells": len(self.cells),
            "unready": {state.value: n for state, n in snapshot.unready_cells.items()},
            "removed": removed,
        }


def needs_of(gang: GangFacts) -> dict[int, int]:
    """How many more members of each group must be there for its minimum to hold."""
    return {
        group_id: max(group.min_available - group.present, 0)
        for group_id, group in zip(gang.group_ids, gang.groups, strict=True)
    }


def need_of(gang: GangFacts) -> int:
    """How many members must be placed at once: of each group its needs, and of all the job's."""
    lacking = gang.min_available - sum(group.present for group in gang.groups)
    return max(sum(needs_of(gang).values()), lacking)


def lines(pool: Pool, plan: PlacementPlan) -> Iterator[tuple[int, int, int]]:
    """The plan's lines in their order, as (place of the row, cell, count)."""
    keys = {
        (one.group_id, one.avoid_cell_ids, one.nominated_cell_id): place
        for place, one in enumerate(pool.rows)
    }
    placed = plan.placements
    columns = (placed.group_ids, placed.avoid_cell_ids, placed.nominated_cell_ids)
    places = [keys[key] for key in zip(*columns, strict=True)]
    yield from zip(places, placed.cell_ids, placed.counts, strict=True)


def ends_in_time(pool: Pool, one: Row, cell_id: int) -> bool:
    """Whether a task of the row has surely ended before the cell's kept room can be used."""
    begins = [item.begins_at for item in pool.snapshot.nominations if item.cell_id == cell_id]
    if one.timeout_seconds is None or None in begins:
        return False
    ends = pool.snapshot.now + timedelta(seconds=one.timeout_seconds + 60)
    return all(begin is not None and ends <= begin for begin in begins)


def bare(reason: Any) -> dict[str, Any]:
    """A reason without its texts."""
    found = {name: value for name, value in reason.items() if name != "text"}
    if "violations" in found:
        found["violations"] = [bare(item) for item in found["violations"]]
    return found
