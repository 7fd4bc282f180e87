"""Count what the attempts of settled jobs requested and used in the totals of usage, each once.

The mark of a job and the totals change in one statement, so that a process that dies counts either
both or none. Jobs have the mark, not attempts: a write for each attempt would cost more than the
rest. Reports and placement write no totals.
"""

import zlib
from collections.abc import Callable, Collection, Mapping

from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.usage import MAX_CORES, MAX_JOB_NAMES, MAX_PEAK_MIB
from controlplane.queries.sql import execute, scalar
from controlplane.queries.tenancy.usage import UNCOUNTED

# Jobs of one statement, and tasks at which it takes no further job.
_JOBS = 500
PAGE = 5_000

# Counts of two processes follow each other, so that none exceeds the number of job names.
_LOCK = zlib.crc32(b"cellrun usage")

_NEXT = f"SELECT j.id {UNCOUNTED} ORDER BY j.id LIMIT {_JOBS} FOR NO KEY UPDATE SKIP LOCKED"
_LISTED = f"""
    SELECT j.id {UNCOUNTED} AND j.id = ANY(%(jobs)s::bigint[])
    ORDER BY j.id LIMIT {_JOBS} FOR NO KEY UPDATE
"""

# OFFSET 0: tasks and attempts of each job by their indexes. Without it, a page of jobs whose size
# is estimated badly reads the whole tables.
# Windows limit the job names: a join of two parts, whose sizes are estimated badly, would take the
# square of the number.
_COUNT = """
WITH open AS MATERIALIZED ({open}), sized AS MATERIALIZED (
    SELECT o.id, sum(g.replicas) OVER (ORDER BY o.id) - g.replicas AS tasks_before
    FROM open o CROSS JOIN LATERAL (
        SELECT sum(replicas) AS replicas FROM controlplane_taskgroup WHERE job_id = o.id
    ) g
), marked AS (
    UPDATE controlplane_job j SET is_usage_counted = true FROM sized s
    WHERE j.id = s.id AND coalesce(s.tasks_before, 0) < %(page)s
    RETURNING j.id, j.project_id, j.owner_id, j.name
), held AS (
    SELECT date_trunc('month', a.released_at AT TIME ZONE 'UTC')::date AS month,
           m.project_id, u.username AS owner, m.name,
           greatest(0, extract(epoch FROM a.released_at - a.created_at))::float8 AS seconds,
           coalesce((coalesce(a.resources, g.resources) ->> 'cpu_millis')::float8, 0) / 1000
               AS cores,
           coalesce((coalesce(a.resources, g.resources) ->> 'memory_mib')::float8, 0) AS mib,
           coalesce((g.resources ->> 'gpu')::float8, 0) AS gpus,
           (a.usage ->> 'cpu_seconds')::float8 AS cpu,
           (a.usage ->> 'memory_peak_mib')::float8 AS peak
    FROM marked m
    CROSS JOIN LATERAL (SELECT id FROM controlplane_task WHERE job_id = m.id OFFSET 0) t
    CROSS JOIN LATERAL (SELECT group_id, created_at, released_at, resources, usage
                        FROM controlplane_attempt WHERE task_id = t.id OFFSET 0) a
    JOIN auth_user u ON u.id = m.owner_id
    JOIN controlplane_taskgroup g ON g.id = a.group_id
), plausible AS (
    SELECT month, project_id, owner, name, seconds, cores, mib, gpus,
           CASE WHEN cpu <= greatest(seconds, 1) * {cores} THEN cpu END AS cpu,
           CASE WHEN peak <= {mib} THEN peak END AS peak
    FROM held
), sums AS (
    SELECT month, project_id, owner, name, count(*) AS attempts,
           count(*) FILTER (WHERE cpu IS NULL) AS unmeasured,
           sum(cores * seconds) AS cpu_requested,
           coalesce(sum(cores * seconds) FILTER (WHERE cpu IS NOT NULL), 0) AS cpu_measured,
           coalesce(sum(cpu), 0) AS cpu_used,
           sum(mib * seconds) AS memory_requested,
           coalesce(sum(mib * seconds) FILTER (WHERE peak IS NOT NULL), 0) AS memory_measured,
           coalesce(sum(peak * seconds), 0) AS memory_used,
           coalesce(max(peak), 0) AS peak,
           sum(gpus * seconds) AS gpu_requested
    FROM plausible GROUP BY month, project_id, owner, name
), known AS (
    SELECT s.*, EXISTS (
        SELECT FROM controlplane_usagetotal t WHERE t.month = s.month
          AND t.project_id = s.project_id AND t.owner = s.owner AND t.job_name = s.name) AS is_known
    FROM sums s
), placed AS (
    SELECT k.*, row_number() OVER (
        PARTITION BY month, project_id, owner, is_known ORDER BY name) AS place
    FROM known k
), roomy AS (
    SELECT p.*, max(CASE WHEN NOT is_known AND place = 1 THEN (
        SELECT count(*) FROM controlplane_usagetotal t WHERE t.month = p.month
          AND t.project_id = p.project_id AND t.owner = p.owner AND t.job_name <> '') END
    ) OVER (PARTITION BY month, project_id, owner) AS names
    FROM placed p
), named AS (
    SELECT r.*, CASE WHEN NOT is_known AND place + names > {names} THEN '' ELSE name END AS job_name
    FROM roomy r
), added AS (
    INSERT INTO controlplane_usagetotal AS t
        (month, project_id, owner, job_name, attempts, unmeasured_attempts,
         cpu_seconds_requested, cpu_seconds_measured, cpu_seconds_used,
         memory_mib_seconds_requested, memory_mib_seconds_measured, memory_mib_seconds_used,
         memory_peak_mib, gpu_seconds_requested)
    SELECT month, project_id, owner, job_name, sum(attempts), sum(unmeasured),
           sum(cpu_requested), sum(cpu_measured), sum(cpu_used),
           sum(memory_requested), sum(memory_measured), sum(memory_used),
           max(peak), sum(gpu_requested)
    FROM named GROUP BY month, project_id, owner, job_name
    ON CONFLICT (month, project_id, owner, job_name) DO UPDATE SET
        attempts = t.attempts + EXCLUDED.attempts,
        unmeasured_attempts = t.unmeasured_attempts + EXCLUDED.unmeasured_attempts,
        cpu_seconds_requested = t.cpu_seconds_requested + EXCLUDED.cpu_seconds_requested,
        cpu_seconds_measured = t.cpu_seconds_measured + EXCLUDED.cpu_seconds_measured,
        cpu_seconds_used = t.cpu_seconds_used + EXCLUDED.cpu_seconds_used,
        memory_mib_seconds_requested =
            t.memory_mib_seconds_requested + EXCLUDED.memory_mib_seconds_requested,
        memory_mib_seconds_measured =
            t.memory_mib_seconds_measured + EXCLUDED.memory_mib_seconds_measured,
        memory_mib_seconds_used = t.memory_mib_seconds_used + EXCLUDED.memory_mib_seconds_used,
        memory_peak_mib = greatest(t.memory_peak_mib, EXCLUDED.memory_peak_mib),
        gpu_seconds_requested = t.gpu_seconds_requested + EXCLUDED.gpu_seconds_requested
)
SELECT count(*) FROM marked
"""


def _counting(jobs: str) -> str:
    return _COUNT.format(open=jobs, cores=MAX_CORES, mib=MAX_PEAK_MIB, names=MAX_JOB_NAMES)


_COUNT_NEXT, _COUNT_LISTED = _counting(_NEXT), _counting(_LISTED)


def count_usage(is_over: Callable[[], bool]) -> Mapping[str, int]:
    """Count settled jobs page by page, until `is_over()`; skip those that are locked."""
    done, found = 0, 1
    while found and not is_over():
        found = run_in_transaction(lambda: _count(_COUNT_NEXT, {"page": PAGE}))
        done += found
    return {"usage_counted": done}


def count_usage_of(job_ids: Collection[int], is_over: Callable[[], bool]) -> bool:
    """Count those of these jobs that are not counted; return whether there was time for all.

    It waits for jobs that another transaction holds, so that the caller can delete them.
    """
    parameters = {"page": PAGE, "jobs": list(job_ids)}
    while not is_over():
        if not run_in_transaction(lambda: _count(_COUNT_LISTED, parameters)):
            return True
    return False


def _count(statement: str, parameters: dict[str, object]) -> int:
    execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    return int(scalar(statement, parameters))
