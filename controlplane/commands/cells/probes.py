"""Detect a deaf inbox by probes through each of its shards, which it stamps."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from controlplane.contract.wire import broker
from controlplane.contract.wire.queues import INBOX_QUEUES
from controlplane.domain.cells.probes import Probe
from controlplane.outbox import transport
from controlplane.queries.cells.keys import write_probe
from controlplane.queries.sql import execute, rows


def send_probes(*, now: datetime) -> list[datetime | None]:
    """Send one probe through each shard; return up to when each has delivered."""
    found = rows(
        """
        INSERT INTO controlplane_inboxprobe (shard, sent_at)
        SELECT n, %(now)s FROM generate_series(0, %(last)s) AS n ORDER BY n
        ON CONFLICT (shard) DO UPDATE SET sent_at = EXCLUDED.sent_at
        RETURNING delivered_until
        """,
        {"now": now, "last": len(INBOX_QUEUES) - 1},
    )
    transport.push(
        [
            (queue, broker.plain_message(queue, write_probe(shard, sent_at=now)))
            for shard, queue in enumerate(INBOX_QUEUES)
        ]
    )
    return [delivered_until for (delivered_until,) in found]


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


def is_deaf(delivered: Iterable[datetime | None], *, now: datetime, patience: timedelta) -> bool:
    """Return whether some shard has not delivered what was sent longer than `patience` ago.

    A time in the future, from before the clock was set back, does not count.
    """
    return any(until is None or not -patience <= now - until < patience for until in delivered)
