"""The exclusive attempts of a cell, and the watchlist, which the cell writes before it acts.

The list is written when an attempt is added or removed, and when the lease is renewed; never for a
cell without exclusive attempts.
"""

from collections.abc import Iterable

from structlog.stdlib import BoundLogger

from controlplane.contract.messages.orders import GroupSpec
from workers.agent.lease import Lease
from workers.attempt.events import Permit
from workers.cell_attempt import CellAttempt
from workers.guard.link import GuardLink
from workers.guard.watchlist import ExclusiveAttempt, Watchlist


class Exclusives:
    """The exclusive attempts of a cell."""

    def __init__(self, link: GuardLink | None, log: BoundLogger) -> None:
        """Create an empty set; without `link`, orders are refused. `log` is bound to the cell."""
        self._link = link
        self._log = log
        self._attempts: dict[str, ExclusiveAttempt] = {}
        self._orphans: dict[str, ExclusiveAttempt] = {}
        self._deadline = 0.0
        self._has_changes = False

    def begin(self, records: Iterable[CellAttempt]) -> None:
        """Continue the watchlist of an earlier process of the cell.

        An attempt on the watchlist without a record keeps its deadline.
        """
        if self._link is None:
            return
        earlier = self._link.read()
        is_ours = earlier.boot_id == self._link.boot_id
        known = dict(earlier.attempts) if is_ours else {}
        for record in records:
            if record.spec.exclusive:
                self._add(record, known.pop(record.uid, None))
        self._orphans = known
        self._has_changes = bool(earlier.attempts or self._attempts)

    def add(self, record: CellAttempt, lease: Lease) -> None:
        """Add an accepted attempt."""
        self._deadline = lease.expires_at
        self._add(record, _watchlist_entry(record.spec, lease))

    def drop(self, record: CellAttempt) -> None:
        """Drop an attempt that has ended."""
        if self._attempts.pop(record.uid, None) is not None:
            self._has_changes = True

    def _add(self, record: CellAttempt, watched: ExclusiveAttempt | None) -> None:
        # An attempt that was not on the list has no lease: its container must end.
        self._attempts[record.uid] = watched or _watchlist_entry(record.spec, Lease())
        self._has_changes = True

    def refusal_reason(self, spec: GroupSpec, lease: Lease, boot: float) -> str | None:
        """Return why an exclusive order is refused now; None: it may be accepted."""
        if self._link is None:
            return "exclusive tasks do not run here"
        if boot >= _watchlist_entry(spec, lease).stops_at:
            return "the lease of the cell has expired, or is about to"
        return None if self._link.stand_by() else "the cell has no guard"

    def permit(self, uid: str) -> Permit:
        """Return whether its container may be created or started now. Thread-safe."""
        return Permit.NEVER if self._link is None else self._link.permit(uid)

    def is_fenced(self, record: CellAttempt) -> bool:
        """Return whether the guard fenced it."""
        if self._link is None or not record.spec.exclusive:
            return False
        status = self._link.status()
        return status.boot_id == self._link.boot_id and record.uid in status.fenced

    def update_guard(self, lease: Lease) -> None:
        """Write the watchlist if it changed, before the cell acts on the change."""
        if self._link is None:
            return
        if self._attempts and lease.expires_at > self._deadline:
            self._renew(lease)
        if not self._has_changes:
            return
        over = self._link.status().over
        self._orphans = {uid: w for uid, w in self._orphans.items() if uid not in over}
        watched = {**self._orphans, **self._attempts}
        number = self._link.read().number + 1
        try:
            self._link.write(Watchlist(number, self._link.boot_id, watched))
        except OSError as error:
            # New attempts are not started, and listed ones keep their deadlines.
            self._log.error("watchlist_not_written", error=str(error))
            return
        self._has_changes = False
        if watched:
            self._link.stand_by()

    def tick(self) -> None:
        """Drive a guard that is part of the cell."""
        if self._link is not None and (self._attempts or self._orphans):
            self._link.tick()

    def keep(self) -> None:
        """Keep the guard running while there are attempts to watch."""
        if self._link is not None and (self._attempts or self._orphans):
            self._link.stand_by()

    @property
    def wakes_at(self) -> float:
        """When `tick` must be called next, in seconds since boot."""
        # A fleet calls this for a thousand cells in each round; most have no exclusive attempt.
        if self._link is None or not (self._attempts or self._orphans):
            return float("inf")
        return self._link.wakes_at

    def dismiss(self) -> None:
        """End the guard with the process of the cell."""
        if self._link is not None:
            self._link.dismiss()

    def _renew(self, lease: Lease) -> None:
        self._deadline = lease.expires_at
        self._has_changes = True
        for uid, item in self._attempts.items():
            self._attempts[uid] = ExclusiveAttempt(
                max(item.deadline, lease.expires_at),
                lease.seconds,
                item.grace_seconds,
                item.stop_signal,
            )


def _watchlist_entry(spec: GroupSpec, lease: Lease) -> ExclusiveAttempt:
    return ExclusiveAttempt(
        lease.expires_at, lease.seconds, spec.stop_grace_seconds, spec.stop_signal
    )
