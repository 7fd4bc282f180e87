"""The inputs of a cell, each with its time: its only interface to the process that drives it."""

from dataclasses import dataclass

from workers.attempt.events import DriverEvent


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The time: `wall` in seconds since 1970, `boot` in seconds since boot, including sleep."""

    wall: float
    boot: float


@dataclass(frozen=True, slots=True)
class OrderMessage:
    """The text of an order as it came from the broker."""

    text: str


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of a scan: uids of containers, and of folders of attempts."""

    containers: tuple[str, ...]
    folders: tuple[str, ...]


CellInput = OrderMessage | DriverEvent | ScanResult
