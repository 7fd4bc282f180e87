"""Use of the cache by a group, and the statuses of its tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, Literal

from controlplane.spec.parts import Cache


class CacheStatus(IntEnum):
    """How a task uses the cache.

    LOOKUP and WAITING keep it from being placed; so does LOOKUP_FAILURE while a serializing task
    waits for its key.
    """

    DISABLED = 0
    LOOKUP = 1
    WAITING = 2
    MISS = 3
    HIT = 4
    POPULATED = 5
    LOOKUP_FAILURE = 6
    PUT_FAILURE = 7
    SKIPPED = 8


RUNS = frozenset({CacheStatus.MISS, CacheStatus.LOOKUP_FAILURE})
"""The statuses of tasks that run, and whose success becomes an entry."""

BLOCKED = frozenset({CacheStatus.LOOKUP, CacheStatus.WAITING})
"""The statuses of tasks that placement always skips."""

MAY_WAIT = frozenset({CacheStatus.WAITING, CacheStatus.LOOKUP_FAILURE})
"""The statuses of serializing tasks that placement skips until their key is free."""

# A reservation whose owner succeeded lasts until the entry is stored, but not longer.
STORE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Use of the cache by a group, as stored in its row."""

    version: str
    key: str | None
    scope: Literal["project", "domain"]
    serialize: bool
    overwrite: bool

    @classmethod
    def of(cls, cache: Cache) -> "CachePolicy | None":
        """Return the policy of a submitted group; None if it does not use the cache."""
        if not cache.enabled:
            return None
        return cls(cache.version, cache.key, cache.scope, cache.serialize, cache.overwrite)

    @classmethod
    def read(cls, found: Any) -> "CachePolicy | None":
        """Return the policy of a row; None if it is invalid."""
        try:
            return cls(**found)
        except TypeError:
            return None

    def as_dict(self) -> dict[str, Any]:
        """Return the policy for a row."""
        return asdict(self)

    def scope_of(self, *, project_id: int, domain_id: int) -> str:
        """Return the scope in which keys of the group are unique; it never crosses a domain."""
        return f"project {project_id}" if self.scope == "project" else f"domain {domain_id}"


def lacks_outputs(declared: Mapping[str, Any], stored: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether an entry lacks an output that a group declares.

    Only an entry of a key that submitters chose can. `declared`: the launch of the group; `stored`:
    the files of the entry.
    """
    names = {item["name"] for item in declared.get("outputs") or ()}
    if not names:
        return False
    return not all(
        any(f"{file['name']}/".startswith(f"{name}/") for file in stored) for name in names
    )
