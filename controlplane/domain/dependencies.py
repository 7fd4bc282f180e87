"""When a group may start: once each group it depends on has started, succeeded or finished."""

from collections.abc import Mapping
from enum import Enum

from controlplane.contract.states import TaskState as S
from controlplane.domain.snapshots import GroupFacts
from controlplane.domain.states import OPEN


class Standing(Enum):
    """How a dependency stands."""

    SATISFIED = "satisfied"
    OPEN = "open"
    IMPOSSIBLE = "impossible"


def standing(group: GroupFacts, until: str) -> Standing:
    """How "`group` until `until`" stands.

    started: as many tasks as the group's minimum ran at some time; succeeded: none is open and as
    many succeeded; finished: none is open.
    """
    is_open = any(group.counts.get(state, 0) for state in OPEN)
    succeeded = group.counts.get(S.SUCCEEDED, 0)
    match until:
        case "started":
            ran = succeeded + group.counts.get(S.RUNNING, 0) + group.counts.get(S.FAILED, 0)
            met = ran >= group.min_available
        case "finished":
            met = not is_open
        case _:
            met = not is_open and succeeded >= group.min_available
    if met:
        return Standing.SATISFIED
    return Standing.OPEN if is_open else Standing.IMPOSSIBLE


def dependencies_of(group: GroupFacts, groups: Mapping[str, GroupFacts]) -> Standing:
    """How all dependencies of `group` stand: impossible if one is, satisfied if all are."""
    standings = [standing(groups[name], until) for name, until in group.depends_on]
    if Standing.IMPOSSIBLE in standings:
        return Standing.IMPOSSIBLE
    return Standing.SATISFIED if all(s is Standing.SATISFIED for s in standings) else Standing.OPEN
