"""The shape of a group: all properties that placement uses, as one number.

Groups have one shape if their tasks fit the same cells, have the same priority and count against
the same quotas. A result for the shape holds for all its tasks (Armada: scheduling keys; Kueue:
KEP-9694).
"""

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.domain.constraints import Constraint
from controlplane.domain.placement.model.concurrency import ConcurrencyRule
from controlplane.domain.state.states import Band

_BITS = 63  # a positive bigint


@dataclass(frozen=True, slots=True)
class ShapeKey:
    """The properties that identify a shape."""

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
    concurrency: ConcurrencyRule | None = None

    def identity(self) -> Hashable:
        """Return a value that only keys with the same number have, in less time than `number`."""
        return (
            self.pool_id,
            self.band,
            self.owner_id,
            self.project_id,
            tuple(self.resources.items()),
            self.task_type,
            tuple(self.constraints),
            tuple(self.placement_tags),
            self.coscheduled,
            self.allow_unsatisfiable,
            self.concurrency,
        )

    def number(self) -> int:
        """Return the id of the shape: 63 bits of a digest, equal on all machines."""
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
        # Shapes without a key keep the ids that they had before there were keys.
        if self.concurrency is not None:
            values.append(self.concurrency.as_dict())
        return json.dumps(values, sort_keys=True, separators=(",", ":"))
