"""Invariants of the result cache: blocked tasks, hits, reservations."""

from collections.abc import Iterator

from controlplane.contract.states import TaskState as S
from controlplane.domain.cache.policy import BLOCKED, CacheStatus
from controlplane.domain.integrity.invariant import Finding, invariant
from controlplane.domain.integrity.rows import IntegrityRows
from controlplane.domain.state.states import ACTIVE, TERMINAL


@invariant(
    60,
    "A PENDING task that uses the cache is kept from placement exactly while it is looked up or"
    " waits for an identical task; a serializing one whose lookup failed may be, too; a task on a"
    " cell never is.",
    upheld_by="commands.cache, commands.state.apply (PLACE_TASKS)",
)
def blocked_while_waiting(rows: IntegrityRows) -> Iterator[Finding]:
    for use in rows.cache_uses:
        may_be_either = use.status is CacheStatus.LOOKUP_FAILURE and use.is_reserved
        is_right = may_be_either or use.is_blocked == (use.status in BLOCKED)
        if use.state not in TERMINAL and not is_right:
            yield Finding(use, f"{use.status.name}, blocked: {use.is_blocked}")
        if use.state in ACTIVE and use.is_blocked:
            yield Finding(use, f"{use.state.name} and blocked")


@invariant(
    61,
    "A task is a HIT exactly if it refers to an entry; then it has SUCCEEDED and the entry exists.",
    upheld_by="commands.cache.lookup, commands.cache.evict",
)
def hits_have_entries(rows: IntegrityRows) -> Iterator[Finding]:
    for use in rows.cache_uses:
        is_hit = use.status is CacheStatus.HIT
        if is_hit != (use.entry_id is not None):
            yield Finding(use, f"{use.status.name}, entry {use.entry_id}")
        if is_hit and use.state is not S.SUCCEEDED:
            yield Finding(use, f"a hit that is {use.state.name}")
        if use.entry_id is not None and not use.has_entry:
            yield Finding(use, f"entry {use.entry_id} does not exist")


@invariant(
    62,
    "A task of a serializing group is on a cell only with the reservation of its key, so identical"
    " tasks never run at the same time.",
    upheld_by="commands.cache.reservations, in the transaction of the placement",
)
def active_with_reservation(rows: IntegrityRows) -> Iterator[Finding]:
    for use in rows.cache_uses:
        if use.is_reserved and use.state in ACTIVE and use.owner_uid != use.attempt_uid:
            yield Finding(use, f"attempt {use.attempt_uid}, but {use.owner_uid} has the key")
