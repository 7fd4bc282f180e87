"""The shape of a group: all that placement looks at, in one number.

Groups whose tasks fit the same places, compete for them with the same rights and count against the
same quotas have one shape. What is proven of it is proven of all its tasks (Armada: scheduling
keys; Kueue: KEP-9694).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.domain.constraints import Constraint
from controlplane.domain.state.states import Band

_BITS = 63  # a positive bigint


@dataclass(frozen=True, slots=True)
class ShapeKey:
    """What makes two shapes one."""

    pool_id: int
    band: Band
    owner_id: int
    project_id: int
    resources: Mapping[str, int]
    task_type: str
    constraints: Sequence[Constraint] = ()
    placement_tags: Sequence[str] = ()
    coscheduled: bool = False
    allow_unsatisfiable: bool = False

    def number(self) -> int:
        """Return the id of the shape: 63 bits of a digest, equal for equal keys on every
        machine.
        """
        digest = hashlib.sha256(self._text().encode()).digest()
        return int.from_bytes(digest[:8], "big") >> (64 - _BITS)

    def _text(self) -> str:
        values: list[Any] = [
            self.pool_id,
            int(self.band),
            self.owner_id,
            self.project_id,
            sorted(self.resources.items()),
            self.task_type,
            [item.as_dict() for item in self.constraints],
            sorted(self.placement_tags),
            self.coscheduled,
            self.allow_unsatisfiable,
        ]
        return json.dumps(values, sort_keys=True, separators=(",", ":"))
