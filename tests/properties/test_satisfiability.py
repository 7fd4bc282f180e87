"""A gang is refused only if nobody could pack it; alike members are refused whenever nobody can.

All ways of packing small gangs on small cells are tried, one member after the other.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from controlplane.domain.placement.snapshot import CellFacts
from controlplane.domain.satisfiability import Candidate, OfferedPool, find_unsatisfiable
from controlplane.domain.states import CellState
from controlplane.spec import JobSpec, parse_job
from tests.unit.domain.facts import NOW

EMPTY = CellFacts(0, "", CellState.READY, "", {}, {}, frozenset({"container"}))


@st.composite
def cells(draw: st.DrawFn) -> list[CellFacts]:
    """One to three cells, in zones or outside of them."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        zone = draw(st.sampled_from(["a", "b", None]))
        found.append(
            replace(
                EMPTY,
                cell_id=number,
                name=f"c{number}",
                capacity={
                    "cpu_millis": 1000 * draw(st.integers(1, 5)),
                    "memory_mib": 1024 * draw(st.integers(1, 5)),
                },
                labels={"zone": zone} if zone else {},
            )
        )
    return found


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Any]:
    """One to four members, some of which need not be there."""
    replicas = draw(st.integers(1, 4))
    wish = draw(st.sampled_from([None, None, None, "a", "b"]))
    constraint = {"key": "zone", "op": "eq", "values": [wish]}
    return {
        "image": "busybox",
        "replicas": replicas,
        "min_available": draw(st.integers(0, replicas)),
        "resources": {
            "cpu": draw(st.integers(1, 3)),
            "memory": f"{draw(st.integers(1, 3))}Gi",
            **({"licence": 1} if draw(st.booleans()) else {}),
        },
        "constraints": [constraint] if wish else [],
    }


@st.composite
def gangs(draw: st.DrawFn, most: int = 3) -> JobSpec:
    """A gang of groups of all sizes."""
    listed = [{"name": f"g{n}", **draw(groups())} for n in range(draw(st.integers(1, most)))]
    least = sum(group["min_available"] for group in listed)
    minimum = draw(st.integers(least, sum(group["replicas"] for group in listed)))
    by = draw(st.sampled_from([None, "zone"]))
    body = {"name": "a", "coscheduled": True, "groups": listed, "min_available": minimum}
    return parse_job({**body, "group_by": by})


def packings(
    members: Sequence[tuple[str | None, Mapping[str, int]]], room: list[dict[str, int]]
) -> bool:
    """Whether all members find a place, tried in every way."""
    if not members:
        return True
    (zone, request), *rest = members
    for here in room:
        if zone is not None and here["zone"] != ord(zone):
            continue
        if all(here[name] >= amount for name, amount in request.items()):
            for name, amount in request.items():
                here[name] -= amount
            if packings(rest, room):
                return True
            for name, amount in request.items():
                here[name] += amount
    return False


def compositions(job: JobSpec) -> list[tuple[int, ...]]:
    """How many of each group there may be when the minima hold with nobody to spare."""
    return [
        counts
        for counts in product(*(range(group.replicas + 1) for group in job.groups))
        if sum(counts) == job.minimum()
        and all(n >= (g.min_available or 0) for n, g in zip(counts, job.groups, strict=True))
    ]


def parts(job: JobSpec) -> set[tuple[int, ...]]:
    """All that some of those members could be."""
    return {
        part
        for counts in compositions(job)
        for part in product(*(range(count + 1) for count in counts))
    }


def fits(job: JobSpec, counts: Sequence[int], offered: Sequence[CellFacts], tokens: int) -> bool:
    """Whether so many of each group find a place at once."""
    members: list[tuple[str | None, Mapping[str, int]]] = []
    taken = 0
    for count, group in zip(counts, job.groups, strict=True):
        amounts = group.resources.amounts()
        taken += count * amounts.pop("licence", 0)
        wish = group.constraints[0].values[0] if group.constraints else None
        members += [(wish, amounts)] * count
    if taken > tokens:
        return False
    zones: list[list[CellFacts]] = [list(offered)]
    if job.group_by:
        zones = [[c for c in offered if c.labels.get("zone") == zone] for zone in ("a", "b")]
    return any(
        packings(members, [{**c.capacity, "zone": ord(c.labels.get("zone", "-"))} for c in zone])
        for zone in zones
    )


def refusals(job: JobSpec, offered: Sequence[CellFacts], tokens: int) -> list[str]:
    pool = OfferedPool("default", NOW, tuple(offered), {"licence": tokens})
    return [fault.detail for _, fault in find_unsatisfiable([Candidate(0, job, False)], pool)]


def tasks_fit(job: JobSpec, offered: Sequence[CellFacts], tokens: int) -> bool:
    """Whether one task of each group could run, which every job must show."""
    alone = job.model_copy(update={"group_by": None})
    numbers = range(len(job.groups))
    return all(fits(alone, [int(n == m) for m in numbers], offered, tokens) for n in numbers)


def could_be(refused: Sequence[str]) -> int | None:
    """How many of a gang's members could be placed, as a refusal says."""
    found = [re.search(r"([0-9]+) could be", text) for text in refused]
    counts = [int(match[1]) for match in found if match]
    return counts[0] if counts else None


@settings(max_examples=600)
@given(gangs(), cells(), st.integers(1, 6))
def test_a_gang_that_somebody_could_pack_is_never_refused(
    job: JobSpec, offered: list[CellFacts], tokens: int
) -> None:
    refused = refusals(job, offered, tokens)
    packable = tasks_fit(job, offered, tokens) and any(
        fits(job, counts, offered, tokens) for counts in compositions(job)
    )
    event(f"packable {packable}, refused {bool(refused)}")
    assert not (packable and refused)
    told = could_be(refused)
    if told is not None:
        best = max(sum(part) for part in parts(job) if fits(job, part, offered, tokens=99))
        assert best <= told < job.minimum()


@settings(max_examples=300)
@given(gangs(most=1), cells(), st.integers(1, 6))
def test_of_members_that_are_alike_it_is_known_exactly(
    job: JobSpec, offered: list[CellFacts], tokens: int
) -> None:
    refused = refusals(job, offered, tokens)
    packable = fits(job, [job.minimum()], offered, tokens)
    takeable = tasks_fit(job, offered, tokens) and (packable or not job.minimum())
    assert bool(refused) is not takeable, refused
    told = could_be(refused)
    if told is not None:
        assert fits(job, [told], offered, tokens=99)
        assert not fits(job, [told + 1], offered, tokens=99)
