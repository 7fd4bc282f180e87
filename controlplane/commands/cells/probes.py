"""Detect a deaf inbox by probes through each of its shards, which it stamps."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from controlplane.contract.wire import broker
from controlplane.contract.wire.queues import INBOX_QUEUES
from controlplane.outbox import transport
from controlplane.queries.cells.keys import write_probe
from controlplane.queries.sql import execute, scalar


def send_probes(*, now: datetime) -> None:
    """Send one probe through each shard."""
    execute(
        """
        INSERT INTO controlplane_inboxprobe (shard, sent_at)
        SELECT n, %(now)s FROM generate_series(0, %(last)s) AS n ORDER BY n
        ON CONFLICT (shard) DO UPDATE SET sent_at = EXCLUDED.sent_at
        """,
        {"now": now, "last": len(INBOX_QUEUES) - 1},
    )
    transport.push(
        [
            (queue, broker.plain_message(queue, write_probe(shard)))
            for shard, queue in enumerate(INBOX_QUEUES)
        ]
    )


def record_probes(shards: Sequence[int], *, now: datetime) -> None:
    """Record that the inbox returned the probes of these shards."""
    execute(
        """
        WITH locked AS MATERIALIZED (
            SELECT shard FROM controlplane_inboxprobe WHERE shard = ANY(%(shards)s)
            ORDER BY shard FOR NO KEY UPDATE
        )
        UPDATE controlplane_inboxprobe p SET received_at = %(now)s
        FROM locked WHERE p.shard = locked.shard
        """,
        {"shards": sorted(set(shards)), "now": now},
    )


def find_deaf_since(*, now: datetime, patience: timedelta) -> bool:
    """Return whether some shard has not returned a probe for longer than `patience`.

    A time in the future, from before the clock was set back, does not count.
    """
    statement = """
        SELECT count(*) FROM controlplane_inboxprobe WHERE received_at > %s AND received_at <= %s
        """
    returned = scalar(statement, [now - patience, now + patience])
    return bool(returned < len(INBOX_QUEUES))
