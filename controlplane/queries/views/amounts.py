"""Amounts of resources in documents: free amounts, and cpu in cores."""

import json
from collections.abc import Mapping
from functools import lru_cache


def shown_amounts(amounts: Mapping[str, int]) -> dict[str, float]:
    """Return the amounts with cpu in cores."""
    shown: dict[str, float] = {}
    for name, amount in amounts.items():
        if name == "cpu_millis":
            shown["cpu"] = amount / 1000
        else:
            shown[name] = amount
    return shown


def shown_text(resources: str) -> dict[str, float]:
    """Return the amounts in JSON text as they are shown; most tasks of a list have equal ones."""
    return dict(_shown_text(resources))


@lru_cache(maxsize=1024)
def _shown_text(resources: str) -> dict[str, float]:
    return shown_amounts(json.loads(resources))


def free_of(capacity: Mapping[str, int], used: Mapping[str, int]) -> dict[str, int]:
    """Return capacity minus usage, at least zero."""
    return {name: max(amount - used.get(name, 0), 0) for name, amount in capacity.items()}
