"""Descriptions of resource amounts for reasons, quotas and rejections."""

from collections.abc import Mapping

_UNITS = {"memory_mib": "MiB of memory", "disk_mib": "MiB of disk"}


def describe_amount(name: str, amount: int) -> str:
    """Return one amount: "0.5 cores", "1 core", "512 MiB of memory", "2 gpu"."""
    if name == "cpu_millis":
        return f"{amount / 1000:g} {'core' if amount == 1000 else 'cores'}"
    return f"{amount} {_UNITS.get(name, name)}"


def describe_shortfall(lacks: Mapping[str, int]) -> str:
    """Return the shortfall as text: "0.5 cores and 512 MiB of memory"."""
    return " and ".join(describe_amount(name, amount) for name, amount in lacks.items())
