"""Synchronisation of a cell's expected and held attempts, which resends lost orders and stops."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.contract.messages.orders import RunAttempt, StopAttempt
from controlplane.contract.states import TaskState
from controlplane.domain.state.states import TERMINAL

# Younger orders may still be in flight, so they are not resent.
IN_FLIGHT = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class ExpectedAttempt:
    """An unreleased attempt of the cell. `spec_id`: of its definition in messages."""

    uid: str
    spec_id: int
    task_id: int
    task_index: int
    number: int
    state: TaskState
    created_at: datetime
    start_before: datetime
    stop_reason: str = ""
    stop_force: bool = False
    stop_grace_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class GrownSpec:
    """The definition of a group with the request of a task that a retry rule increased."""

    group_id: int
    resources: Mapping[str, int]

    @property
    def spec_id(self) -> int:
        """Return its id in messages, below zero: cells keep one definition under each id."""
        text = json.dumps([self.group_id, sorted(self.resources.items())])
        digest = hashlib.sha256(text.encode()).digest()
        return -1 - (int.from_bytes(digest[:8], "big") >> 1)


@dataclass(frozen=True, slots=True)
class SyncResponse:
    """The orders that the cell lacks, and the attempts that it must stop."""

    runs: tuple[RunAttempt, ...]
    stops: tuple[StopAttempt, ...]


def find_different(held: Collection[str], unreleased: Mapping[str, bool]) -> list[str]:
    """Return the `unreleased` attempts that ended (value True), and those that are not `held`."""
    return [uid for uid, has_ended in unreleased.items() if has_ended or uid not in held]


def decide_sync(
    held: Mapping[str, TaskState],
    unreleased: Collection[str],
    different: Sequence[ExpectedAttempt],
    *,
    now: datetime,
) -> SyncResponse:
    """Compare the `unreleased` with the `held` attempts, and return the orders and stops to send.

    `different`: the definitions of those that `find_different` returns and that are unreleased
    still; more do no harm. An attempt that ended is stopped even if the cell does not hold it, so
    that the cell confirms the end.
    """
    runs = tuple(
        RunAttempt(
            item.uid,
            item.spec_id,
            item.task_id,
            item.task_index,
            item.number,
            item.start_before.timestamp(),
        )
        for item in different
        # The creation time is in the future if the clock was set back.
        if item.state not in TERMINAL
        and item.uid not in held
        and abs(now - item.created_at) >= IN_FLIGHT
    )
    ended = [_stop(item) for item in different if item.state in TERMINAL]
    unknown = [StopAttempt(uid, "not wanted") for uid in held if uid not in unreleased]
    return SyncResponse(runs, (*ended, *unknown))


def _stop(item: ExpectedAttempt) -> StopAttempt:
    return StopAttempt(
        item.uid, item.stop_reason or "stopped", item.stop_grace_seconds, item.stop_force
    )
