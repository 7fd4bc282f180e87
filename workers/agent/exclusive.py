"""The exclusive attempts of a cell, and the watchlist that its guard gets before the cell acts.

The list is written when an attempt comes or goes, and when the lease is renewed; never for a cell
without exclusive attempts.
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
    """`link`: None for a cell that can have no guard, and so no exclusive attempts.

    `log`: bound to the cell.
    """

    def __init__(self, link: GuardLink | None, log: BoundLogger) -> None:
        self._link = link
        self._log = log
        self._attempts: dict[str, ExclusiveAttempt] = {}
        self._orphans: dict[str, ExclusiveAttempt] = {}
        self._deadline = 0.0
        self._is_dirty = False

    def begin(self, records: Iterable[CellAttempt]) -> None:
        """A process of the cell starts: what an earlier one had watched still is.

        An attempt on the watchlist without a record keeps its deadline, which nothing renews.
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
        self._is_dirty = bool(earlier.attempts or self._attempts)

    def add(self, record: CellAttempt, lease: Lease) -> None:
        """An exclusive attempt is taken."""
        self._deadline = lease.expires_at
        self._add(record, _watched(record.spec, lease))

    def drop(self, record: CellAttempt) -> None:
        """It is over."""
        if self._attempts.pop(record.uid, None) is not None:
            self._is_dirty = True

    def _add(self, record: CellAttempt, watched: ExclusiveAttempt | None) -> None:
        # Without a list there was no lease: whatever runs of it has to end.
        self._attempts[record.uid] = watched or _watched(record.spec, Lease())
        self._is_dirty = True

    def why_not(self, spec: GroupSpec, lease: Lease, boot: float) -> str | None:
        """Why an exclusive order is refused now; None: it may be taken."""
        if self._link is None:
            return "exclusive tasks do not run here"
        if boot >= _watched(spec, lease).stops_at:
            return "the lease of the cell has expired, or is about to"
        return None if self._link.stand_by() else "the cell has no guard"

    def permit(self, uid: str) -> Permit:
        """Whether its container may be created or started now; from any thread."""
        return Permit.NEVER if self._link is None else self._link.permit(uid)

    def is_fenced(self, record: CellAttempt) -> bool:
        """Return whether the guard ended it."""
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
        if not self._is_dirty:
            return
        over = self._link.status().over
        self._orphans = {uid: w for uid, w in self._orphans.items() if uid not in over}
        watched = {**self._orphans, **self._attempts}
        number = self._link.read().number + 1
        try:
            self._link.write(Watchlist(number, self._link.boot_id, watched))
        except OSError as error:
            # What is not on the list is not started, and what is keeps the deadline it had.
            self._log.error("watchlist_not_written", error=str(error))
            return
        self._is_dirty = False
        if watched:
            self._link.stand_by()

    def tick(self) -> None:
        """Let time pass for a guard that has none of its own."""
        if self._link is not None and (self._attempts or self._orphans):
            self._link.tick()

    def keep(self) -> None:
        """Keep the guard running while there are attempts to watch."""
        if self._link is not None and (self._attempts or self._orphans):
            self._link.stand_by()

    @property
    def wakes_at(self) -> float:
        """When `tick` has something to do, in seconds since boot."""
        # A fleet calls this for a thousand cells in each round, and most have no such attempt.
        if self._link is None or not (self._attempts or self._orphans):
            return float("inf")
        return self._link.wakes_at

    def dismiss(self) -> None:
        """The process of the cell ends."""
        if self._link is not None:
            self._link.dismiss()

    def _renew(self, lease: Lease) -> None:
        self._deadline = lease.expires_at
        self._is_dirty = True
        for uid, item in self._attempts.items():
            self._attempts[uid] = ExclusiveAttempt(
                max(item.deadline, lease.expires_at),
                lease.seconds,
                item.grace_seconds,
                item.stop_signal,
            )


def _watched(spec: GroupSpec, lease: Lease) -> ExclusiveAttempt:
    return ExclusiveAttempt(
        lease.expires_at, lease.seconds, spec.stop_grace_seconds, spec.stop_signal
    )
