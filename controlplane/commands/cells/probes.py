"""Detect a deaf inbox by probes through each of its shards, which it stamps."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from controlplane.contract.wire import broker
from controlplane.contract.wire.queues import INBOX_QUEUES
from controlplane.domain.cells.probes import Probe
from controlplane.domain.convergence.policy import Policy
from controlplane.outbox import transport
from controlplane.queries.cells.keys import write_probe
from controlplane.queries.sql import execute, rows


class ProbeDelivery(NamedTuple):
    """When the last probe of a shard was sent, and up to when the shard has delivered."""

    sent_at: datetime | None
    until: datetime | None


def send_probes(*, now: datetime) -> list[ProbeDelivery]:
    """Send one probe through each shard; return the delivery of those before it."""
    found = rows(
        """
        WITH former AS (
            SELECT shard, sent_at FROM controlplane_inboxprobe
        ), sent AS (
            INSERT INTO controlplane_inboxprobe (shard, sent_at)
            SELECT n, %(now)s FROM generate_series(0, %(last)s) AS n ORDER BY n
            ON CONFLICT (shard) DO UPDATE SET sent_at = EXCLUDED.sent_at
            RETURNING shard, delivered_until
        )
        SELECT former.sent_at, sent.delivered_until FROM sent LEFT JOIN former USING (shard)
        """,
        {"now": now, "last": len(INBOX_QUEUES) - 1},
    )
    transport.push(
        [
            (queue, broker.plain_message(queue, write_probe(shard, sent_at=now)))
            for shard, queue in enumerate(INBOX_QUEUES)
        ]
    )
    return [ProbeDelivery(*row) for row in found]


def record_probes(probes: Iterable[Probe], *, now: datetime) -> None:
    """Record up to when each shard has delivered: the time at which its returned probe was sent.

    An older probe changes nothing, unless the recorded time is in the future, from before the clock
    was set back.
    """
    delivered: dict[int, datetime] = {}
    for probe in probes:
        sent_at = min(probe.sent_at, now)
        delivered[probe.shard] = max(delivered.get(probe.shard, sent_at), sent_at)
    execute(
        """
        WITH locked AS MATERIALIZED (
            SELECT p.shard, v.sent_at FROM controlplane_inboxprobe p
            JOIN unnest(%(shards)s::int[], %(times)s::timestamptz[]) AS v(shard, sent_at)
              ON v.shard = p.shard
            ORDER BY p.shard FOR NO KEY UPDATE OF p
        )
        UPDATE controlplane_inboxprobe p SET delivered_until = locked.sent_at
        FROM locked WHERE p.shard = locked.shard
          AND (p.delivered_until IS NULL OR p.delivered_until < locked.sent_at
               OR p.delivered_until > %(now)s)
        """,
        {"shards": [*delivered], "times": [*delivered.values()], "now": now},
    )


def is_deaf(deliveries: Iterable[ProbeDelivery], *, now: datetime, policy: Policy) -> bool:
    """Return whether some shard has not delivered what was sent longer than a gap ago.

    A shard that has delivered all probes is deaf after a lease: a late tick sends them late. A time
    in the future, from before the clock was set back, does not count.
    """
    return any(_is_late(each, now, policy) for each in deliveries)


def _is_late(delivery: ProbeDelivery, now: datetime, policy: Policy) -> bool:
    sent_at, until = delivery
    if until is None or until > now + policy.gap:
        return True
    has_all = sent_at is not None and until >= sent_at
    patience = max(policy.gap, timedelta(seconds=policy.lease)) if has_all else policy.gap
    return now - until >= patience
