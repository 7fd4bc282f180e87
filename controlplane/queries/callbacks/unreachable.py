"""Find receivers that callbacks do not reach, at a bounded cost however many callbacks wait."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import starmap

from controlplane.queries.callbacks.callbacks import find_receivers
from controlplane.queries.sql import rows

MOST_COUNTED = 1_000
"""The limit to which callbacks of one receiver and state are counted."""

# The limits of receivers with failed tries and of receivers with abandoned callbacks.
_SCAN_LIMIT = 500
# Abandoned callbacks of one receiver that are read in search of a job that is not deleted.
_NEWEST = 100
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class UnreachableReceiver:
    """The undelivered callbacks of one receiver. `tried`: waiting ones with a failed try.

    Counts end at 1,000. `due_at`: of the most overdue waiting callback; None if none waits.
    """

    host: str
    given_up: int
    waiting: int
    tried: int
    claimed: int
    since: datetime
    due_at: datetime | None
    fault_of_given_up: str
    fault: str


def find_unreached(now: datetime, *, late: datetime) -> list[str]:
    """Return receivers with callbacks abandoned within a day, failed tries, or due before `late`.

    Those with abandoned callbacks first, then by the longest wait.
    """
    # Go from one receiver to the next by the index, whatever the number of their callbacks.
    walk = """
        (SELECT host, 1 AS n FROM controlplane_callback WHERE {of} ORDER BY host LIMIT 1)
        UNION ALL
        SELECT k.host, w.n + 1 FROM {name} w, LATERAL (
            SELECT host FROM controlplane_callback WHERE {of} AND host > w.host
            ORDER BY host LIMIT 1) k
        WHERE w.n < %(scan_limit)s
        """
    statement = f"""
        WITH RECURSIVE tried AS ({walk.format(of="state = 'waiting' AND is_tried", name="tried")}),
        given_up AS ({walk.format(of="state = 'abandoned'", name="given_up")}),
        found AS (
            SELECT host FROM tried UNION SELECT host FROM given_up
            UNION SELECT unnest(%(late_hosts)s::text[])
        ), judged AS (
            SELECT f.host, f.host IN (SELECT host FROM tried) AS is_tried, (
                SELECT min(due_at) FROM controlplane_callback
                WHERE state = 'waiting' AND host = f.host) AS due_at,
            EXISTS (SELECT 1 FROM (
                SELECT job_id FROM controlplane_callback
                WHERE state = 'abandoned' AND host = f.host AND ended_at > %(day)s
                ORDER BY ended_at DESC LIMIT %(newest)s) k
                JOIN controlplane_job j ON j.id = k.job_id AND j.deleted_at IS NULL) AS is_given_up
            FROM found f
        )
        SELECT host FROM judged WHERE is_given_up OR is_tried OR due_at <= %(late)s
        ORDER BY is_given_up DESC, due_at, host
        """
    parameters = {
        "late": late,
        "late_hosts": sorted(set(find_receivers(late, behind="").hosts)),
        "day": now - _DAY,
        "scan_limit": _SCAN_LIMIT,
        "newest": _NEWEST,
    }
    return [host for (host,) in rows(statement, parameters)]


def load_undelivered(hosts: Sequence[str], *, now: datetime) -> list[UnreachableReceiver]:
    """Return the undelivered callbacks of receivers, in order, without those of deleted jobs."""
    alive = "JOIN controlplane_job j ON j.id = k.job_id AND j.deleted_at IS NULL"
    of_host = "SELECT * FROM controlplane_callback WHERE host = h.host AND state ="
    statement = f"""
        SELECT h.host, a.n, w.n, t.n, c.n, LEAST(a.since, w.since, c.since), w.due_at,
               COALESCE(a.fault, ''), COALESCE(t.fault, '')
        FROM unnest(%(hosts)s::text[]) WITH ORDINALITY AS h (host, place),
        LATERAL (SELECT count(*) AS n, min(k.created_at) AS since,
                        max(k.last_error) FILTER (WHERE k.is_tried) AS fault
                 FROM ({of_host} 'abandoned' AND ended_at > %(day)s
                       ORDER BY ended_at DESC LIMIT %(most)s) k {alive}) a,
        LATERAL (SELECT count(*) AS n, min(k.created_at) AS since, min(k.due_at) AS due_at
                 FROM ({of_host} 'waiting' ORDER BY due_at LIMIT %(most)s) k {alive}) w,
        LATERAL (SELECT count(*) AS n, max(k.last_error) AS fault
                 FROM ({of_host} 'waiting' AND is_tried LIMIT %(most)s) k {alive}) t,
        LATERAL (SELECT count(*) AS n, min(k.created_at) AS since
                 FROM ({of_host} 'claimed') k {alive}) c
        WHERE a.n + w.n > 0 ORDER BY h.place
        """
    parameters = {"hosts": list(hosts), "day": now - _DAY, "most": MOST_COUNTED}
    return list(starmap(UnreachableReceiver, rows(statement, parameters)))
