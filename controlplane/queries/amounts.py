"""Amounts of resources as documents show them: cpu in cores, whatever else as it is counted."""

from collections.abc import Mapping


def shown_amounts(amounts: Mapping[str, int]) -> dict[str, float]:
    """Amounts with cpu in cores."""
    shown: dict[str, float] = {}
    for name, amount in amounts.items():
        if name == "cpu_millis":
            shown["cpu"] = amount / 1000
        else:
            shown[name] = amount
    return shown
