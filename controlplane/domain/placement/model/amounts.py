"""Descriptions of resource amounts for reasons, quotas and rejections."""

from collections.abc import Mapping

_UNITS = {"memory_mib": "MiB of memory", "disk_mib": "MiB of disk"}


def describe_amount(name: str, amount: int) -> str:
    """Return one amount: "0.5 cores", "1 core", "512 MiB of memory", "2 gpu"."""
    if name == "cpu_millis":
        return f"{_count(name, amount)} {'core' if amount == 1000 else 'cores'}"
    return f"{_count(name, amount)} {_UNITS.get(name, name)}"


def describe_shortfall(lacks: Mapping[str, int], requested: Mapping[str, int]) -> str:
    """Return the missing part of a request as text: "0.5 of 2 cores and 512 MiB of memory".

    The text of an amount that is missing as a whole has one number.
    """
    parts = []
    for name, amount in lacks.items():
        share = f"{_count(name, amount)} of " if amount < requested[name] else ""
        parts.append(share + describe_amount(name, requested[name]))
    return " and ".join(parts)


def _count(name: str, amount: int) -> str:
    return f"{amount / 1000:g}" if name == "cpu_millis" else str(amount)
