"""Concurrency keys: the rule of a job about its key, and the usage of a key."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_BITS = 62  # a bigint with a further bit, which tells locks of placement and submission apart


@dataclass(frozen=True, slots=True)
class StartRate:
    """At most `count` attempts are created in any span of `seconds`."""

    count: int
    seconds: int


@dataclass(frozen=True, slots=True)
class ConcurrencyRule:
    """The limits that the tasks of a job obey, and the key whose attempts count against them.

    `key_id`: of the key in its project. `limit`: of unreleased attempts; None: there is none.
    """

    key_id: int
    key: str
    limit: int | None = None
    starts: StartRate | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the rule in JSON types."""
        starts = None if self.starts is None else [self.starts.count, self.starts.seconds]
        return {"id": self.key_id, "key": self.key, "limit": self.limit, "starts": starts}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "ConcurrencyRule":
        """Return the rule in the result of `as_dict`. Raise KeyError, TypeError, ValueError."""
        starts = None if document["starts"] is None else StartRate(*map(int, document["starts"]))
        limit = None if document["limit"] is None else int(document["limit"])
        return cls(int(document["id"]), str(document["key"]), limit, starts)


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """The usage of a key: `held` unreleased attempts.

    `started`: by the seconds of a rate, the attempts created in that time; no more are counted than
    the largest count of a rule needs.
    """

    key_id: int
    held: int = 0
    started: Mapping[int, int] = field(default_factory=dict)


def key_number(project_id: int, key: str) -> int:
    """Return the id of a key in a project: 63 bits of a digest, equal on all machines."""
    text = json.dumps([project_id, key])
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _BITS)
