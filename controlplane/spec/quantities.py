"""Parsing and formatting of quantities in the syntax of Kubernetes ("0.5", "500m", "64Mi").

cpu is stored in thousandths of a core, memory and disk in MiB. Fractions are rounded up, as in
Kubernetes.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_QUANTITY = re.compile(
    r"(?P<number>[0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})"
    r"(?P<suffix>[eE][+-]?[0-9]{1,2}|[numkMGTPE]|[KMGTPE]i)?",
    re.ASCII,
)
_FACTOR = re.compile(r"[0-9]{1,3}(\.[0-9]{1,2})?x", re.ASCII)
_MEBIBYTE = 2**20

MIN_CPU_MILLIS = 10  # engines accept no lower CPU limit
MAX_CPU_MILLIS = 100_000_000  # 100,000 cores
MIN_MEMORY_MIB = 6  # engines start no container with less
MAX_MIB = 2**30  # 1Pi
MAX_FACTOR = 16  # of one increase by a retry rule
MAX_BYTES = 2**53 - 1  # the largest integer that every JSON parser reads exactly


def parse_cpu(value: object) -> int:
    """Parse cores and return thousandths of a core. Raise ValueError naming the limit."""
    millis = _whole(_amount(value, example='0.5 or "500m"') * 1000)
    if not MIN_CPU_MILLIS <= millis <= MAX_CPU_MILLIS:
        raise ValueError("must be at least 0.01 and at most 100000")
    return millis


def parse_memory(value: object) -> int:
    """Parse memory and return MiB; a bare number is bytes. Raise ValueError naming the limit."""
    return _mebibytes(value, minimum=MIN_MEMORY_MIB, example='"64Mi"')


def parse_disk(value: object) -> int:
    """Parse disk space, which may be 0, like `parse_memory`."""
    return _mebibytes(value, minimum=0, example='"100Mi"')


def parse_shm(value: object) -> int:
    """Parse shared memory like `parse_memory`."""
    return _mebibytes(value, minimum=1, example='"64Mi"')


def parse_bytes(value: object) -> int:
    """Parse a number of bytes, which may be 0. Raise ValueError naming the limit."""
    size = _whole(_amount(value, example='"50Gi"'))
    if size > MAX_BYTES:
        raise ValueError("must be at most 9007199254740991 bytes (8Pi - 1)")
    return size


def _mebibytes(value: object, *, minimum: int, example: str) -> int:
    mebibytes = _whole(_amount(value, example=example) / _MEBIBYTE)
    if not minimum <= mebibytes <= MAX_MIB:
        text = f"{minimum}Mi" if minimum else "0"
        raise ValueError(f"must be at least {text} and at most 1Pi (a bare number is bytes)")
    return mebibytes


@dataclass(frozen=True, slots=True)
class Increase:
    """An increase of a request: to `percent` of it, or to an amount."""

    percent: int | None = None
    amount: int | None = None


def parse_increase(value: object, parse: Callable[[object], int], *, example: str) -> Increase:
    """Parse a factor ("2x") or an amount, which `parse` reads. Raise ValueError."""
    if isinstance(value, Increase):
        return value
    if not isinstance(value, str) or not value.endswith("x"):
        is_quantity = not isinstance(value, bool) and isinstance(value, int | float | str)
        if not is_quantity or (isinstance(value, str) and not value[:1].isdigit()):
            raise ValueError(f'must be a factor like "2x", or a quantity like {example}')
        return Increase(amount=parse(value))
    if not _FACTOR.fullmatch(value):
        raise ValueError('must be a factor like "2x" or "1.5x"')
    percent = int(Decimal(value[:-1]) * 100)
    if not 100 < percent <= MAX_FACTOR * 100:
        raise ValueError(f"must be more than 1x and at most {MAX_FACTOR}x")
    return Increase(percent=percent)


def format_increase(increase: Increase, render: Callable[[int], str]) -> str:
    """Format an increase as it is written: "1.5x", or the amount."""
    if increase.percent is None:
        return render(increase.amount or 0)
    return f"{increase.percent / 100:.2f}".rstrip("0").rstrip(".") + "x"


def format_cpu(millis: int) -> str:
    """Format thousandths of a core as cores: "0.5"."""
    return f"{millis / 1000:.3f}".rstrip("0").rstrip(".")


def format_mib(mebibytes: int) -> str:
    """Format MiB in the largest unit without a fraction: "64Mi", "2Gi"."""
    for unit, size in (("Ti", 2**20), ("Gi", 2**10)):
        if mebibytes and mebibytes % size == 0:
            return f"{mebibytes // size}{unit}"
    return f"{mebibytes}Mi"


def _amount(value: object, *, example: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be a quantity like {example}")
    text = value if isinstance(value, str) else repr(value)
    negative = text.startswith("-")
    match = _QUANTITY.fullmatch(text[1:] if negative else text) if len(text) <= 48 else None
    if match is None:
        raise ValueError(f"must be a quantity like {example}")
    suffix = match["suffix"] or ""
    scale = Decimal(f"1{suffix}") if suffix[1:].lstrip("+-").isdigit() else _SUFFIXES[suffix]
    amount = Decimal(match["number"]) * scale
    if negative and amount:
        raise ValueError("must not be negative")
    return amount


def _whole(amount: Decimal) -> int:
    return int(amount.to_integral_value(rounding=ROUND_CEILING))
