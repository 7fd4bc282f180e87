"""What can happen to a cell, and when: the words in which whoever drives it speaks to it."""

from dataclasses import dataclass

from workers.attempt.events import DriverEvent


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Now: `wall` in seconds since 1970, `boot` in seconds since boot (sleep included)."""

    wall: float
    boot: float


@dataclass(frozen=True, slots=True)
class OrderMessage:
    """The text of an order as it came from the broker."""

    text: str


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What lay about when somebody looked: uids of containers, and of folders of attempts."""

    containers: tuple[str, ...]
    folders: tuple[str, ...]


Happening = OrderMessage | DriverEvent | ScanResult
