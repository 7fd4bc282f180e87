"""Records: dataclasses that mypy alone keeps from being changed, for values made by thousands.

`dataclass(frozen=True)` sets each field by a call of `object.__setattr__`: a change of an attempt,
with 25 fields, took 5 microseconds, and the decision on a report 24 instead of 15. The inbox makes
these decisions one after the other while it holds the locks of their jobs. At run time nothing
prevents an assignment, and a frozen dataclass cannot inherit from a record.
"""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True)
def record(cls: type[_T]) -> type[_T]:
    """Make a dataclass with slots, whose instances mypy treats as frozen."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
