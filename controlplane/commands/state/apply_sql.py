"""The SQL of `effects`: bulk statements, each guarded by the state that it expects to find."""

from collections.abc import Sequence
from types import MappingProxyType

from controlplane.contract.states import TaskState as S
from controlplane.domain.integrity import Repair


def _rows(columns: str) -> str:
    """Return a FROM item `i` of `columns` (names and types), each a parameter with its array."""
    pairs = [column.split() for column in columns.split(",")]
    arrays = ", ".join(f"%({name})s::{kind}[]" for name, kind in pairs)
    return f"unnest({arrays}) AS i({', '.join(name for name, _ in pairs)})"


def array_of(numbers: Sequence[int] | None) -> str | None:
    """The numbers as PostgreSQL writes an array; None: there are none."""
    return "{" + ",".join(map(str, numbers)) + "}" if numbers else None


_TASKS = _rows(
    "task_id bigint, task_from smallint, task_to smallint, terminal boolean, uid uuid,"
    " attempt_open boolean, failure integer, preemption integer, system integer, system_row"
    " integer, refusal_row integer, consecutive_crashes integer, not_before timestamptz, avoid"
    " text, started_at timestamptz, failure_reason text, at timestamptz, nominated_cell_id bigint,"
    " nominated_until timestamptz, prefer_cell_id bigint, shape_id bigint, resources text"
)
_IF_MOVED = "CASE WHEN i.task_from <> i.task_to THEN i.{0} ELSE t.{0} END"
CHANGE_TASKS = f"""
UPDATE controlplane_task t SET
    state = i.task_to,
    attempt_open = i.attempt_open,
    failure_count = i.failure,
    preemption_count = i.preemption,
    system_failure_count = i.system,
    system_row = i.system_row,
    refusal_row = i.refusal_row,
    consecutive_crashes = i.consecutive_crashes,
    not_before = {_IF_MOVED.format("not_before")},
    avoid_cell_ids = CASE WHEN i.task_from <> i.task_to THEN i.avoid::bigint[]
                          ELSE t.avoid_cell_ids END,
    prefer_cell_id = {_IF_MOVED.format("prefer_cell_id")},
    nominated_cell_id = {_IF_MOVED.format("nominated_cell_id")},
    nominated_until = {_IF_MOVED.format("nominated_until")},
    shape_id = COALESCE(i.shape_id, t.shape_id),
    resources = COALESCE(i.resources::jsonb, t.resources),
    started_at = COALESCE(t.started_at, i.started_at),
    finished_at = CASE WHEN i.terminal THEN COALESCE(t.finished_at, i.at) END,
    failure_reason = CASE WHEN i.terminal AND t.finished_at IS NULL
                          THEN i.failure_reason ELSE t.failure_reason END,
    updated_at = i.at
FROM {_TASKS}
WHERE t.id = i.task_id AND t.state = i.task_from
  AND (i.uid IS NULL OR t.attempt_uid = i.uid)
RETURNING t.id, t.cache_status
"""

_ATTEMPT_COLUMNS = (
    "uid uuid, state_from smallint, state_to smallint, charged text, report_seq bigint, phase"
    " text, progress smallint, container_id text, exit_code bigint, failure_kind text, reason"
    " text, message text, result text, result_truncated boolean, usage text, started_at"
    " timestamptz, finished_at timestamptz, release text, stop_reason text, stop_force boolean,"
    " at timestamptz, charge integer, releasable_at timestamptz, details text, phase_number"
    " smallint, retry_rule smallint"
)
ATTEMPT_FIELDS = tuple(column.split()[0] for column in _ATTEMPT_COLUMNS.split(","))
"""The fields of `ChangeAttempt` that `CHANGE_ATTEMPTS` takes, and `at`."""

CHANGE_ATTEMPTS = f"""
UPDATE controlplane_attempt a SET
    state = i.state_to,
    state_since = CASE WHEN i.state_from <> i.state_to OR i.phase <> a.phase
                       THEN i.at ELSE a.state_since END,
    charged = COALESCE(i.charged, a.charged),
    charge = a.charge + i.charge,
    retry_rule = COALESCE(a.retry_rule, i.retry_rule),
    releasable_at = COALESCE(a.releasable_at, i.releasable_at),
    report_seq = COALESCE(i.report_seq, a.report_seq),
    phase = COALESCE(i.phase, a.phase),
    phase_number = GREATEST(a.phase_number, i.phase_number),
    progress = COALESCE(i.progress, a.progress),
    container_id = COALESCE(i.container_id, a.container_id),
    exit_code = COALESCE(a.exit_code, i.exit_code),
    failure_kind = CASE WHEN a.finished_at IS NULL THEN COALESCE(i.failure_kind, a.failure_kind)
                        ELSE a.failure_kind END,
    reason = CASE WHEN a.finished_at IS NULL THEN COALESCE(i.reason, a.reason) ELSE a.reason END,
    message = CASE WHEN a.finished_at IS NULL THEN COALESCE(i.message, a.message)
                   ELSE a.message END,
    result = COALESCE(a.result, i.result),
    result_truncated = a.result_truncated OR i.result_truncated,
    usage = COALESCE(i.usage::jsonb, a.usage),
    details = CASE WHEN i.details IS NULL THEN a.details
                   ELSE COALESCE(a.details, '{{}}') || i.details::jsonb END,
    -- A transaction that waited for the lock has read the clock before: keep the instants in order.
    started_at = LEAST(a.started_at, CASE WHEN i.started_at IS NOT NULL
                                          THEN GREATEST(i.started_at, a.created_at) END),
    finished_at = COALESCE(a.finished_at, CASE WHEN i.finished_at IS NOT NULL
        THEN GREATEST(i.finished_at, a.created_at, LEAST(a.started_at, i.started_at)) END),
    released_at = CASE WHEN i.release IS NOT NULL
        THEN GREATEST(i.at, a.created_at, a.finished_at, i.finished_at,
                      LEAST(a.started_at, i.started_at)) END,
    release_kind = COALESCE(i.release, ''),
    stop_reason = COALESCE(i.stop_reason, a.stop_reason),
    stop_forced_at = COALESCE(a.stop_forced_at, CASE WHEN i.stop_force THEN i.at END)
FROM {_rows(_ATTEMPT_COLUMNS)}
WHERE a.uid = i.uid AND a.state = i.state_from AND a.released_at IS NULL
"""

_STEPS = _rows(
    "job_id bigint, task_id bigint, uid uuid, state_from smallint, state_to smallint,"
    " attempt_state smallint, reason text, message text, at timestamptz"
)
ADD_HISTORY = f"""
INSERT INTO controlplane_transition
    (job_id, task_id, attempt_uid, from_state, to_state, attempt_state, reason, message, actor, at)
SELECT i.job_id, i.task_id, i.uid, i.state_from, i.state_to, i.attempt_state, i.reason, i.message,
       %(actor)s, i.at
FROM {_STEPS}
"""

_GROUPS = _rows(
    "group_id bigint, counts text, excused integer, startable_at timestamptz, deadline_at"
    " timestamptz"
)
WRITE_GROUPS = f"""
UPDATE controlplane_taskgroup g SET
    counts = i.counts::integer[],
    killed_by_dependency = i.excused,
    startable_at = i.startable_at,
    deadline_at = COALESCE(g.deadline_at, i.deadline_at),
    pending_reason = CASE WHEN i.startable_at IS DISTINCT FROM g.startable_at
                          THEN NULL ELSE g.pending_reason END
FROM {_GROUPS}
WHERE g.id = i.group_id
"""

_JOBS = _rows(
    "job_id bigint, state smallint, ending_as smallint, ending_reason text, force boolean,"
    " failure_reason text, started_at timestamptz, finished_at timestamptz, settled_at"
    " timestamptz, is_requeuing boolean, waits_for_jobs boolean"
)
WRITE_JOBS = f"""
UPDATE controlplane_job j SET
    state = i.state, ending_as = i.ending_as, ending_reason = i.ending_reason,
    ending_force = j.ending_force OR i.force, failure_reason = i.failure_reason,
    started_at = i.started_at, finished_at = i.finished_at,
    settled_at = CASE WHEN i.settled_at IS NOT NULL
                      THEN GREATEST(i.settled_at, i.finished_at) END,
    expires_at = COALESCE(j.expires_at,
        CASE WHEN j.is_one_off THEN i.finished_at
             WHEN i.settled_at IS NOT NULL THEN GREATEST(i.settled_at, i.finished_at) END
        + make_interval(secs => j.ttl_seconds)),
    is_requeuing = i.is_requeuing, waits_for_jobs = i.waits_for_jobs
FROM {_JOBS}
WHERE j.id = i.job_id AND j.settled_at IS NULL
"""

# It is tried for a day, as any callback; that of a one-off task as long as the task exists.
# Deleting a job abandons its callbacks.
_ADD_CALLBACKS = """
INSERT INTO controlplane_callback
    (job_id, task_id, owner_id, url, host, state, tries, is_tried, due_at, give_up_at, created_at,
     last_error)
SELECT j.id, {task}, j.owner_id, j.callback_url, left(j.callback_host, 260), 'waiting', 0, false,
       %s, %s::timestamptz + interval '1 day', %s, ''
FROM {source} AND j.callback_url <> '' AND j.deleted_at IS NULL
ORDER BY j.id, {task} ON CONFLICT (job_id, task_id) DO NOTHING
"""
ADD_TASK_CALLBACKS = _ADD_CALLBACKS.format(
    task="t.id",
    source="controlplane_task t JOIN controlplane_job j ON j.id = t.job_id WHERE t.id = ANY(%s)",
)
ADD_JOB_CALLBACKS = _ADD_CALLBACKS.format(
    task="NULL::bigint", source="controlplane_job j WHERE j.id = ANY(%s)"
)

# Each end for the tick of notifications, in the transaction of the end.
NOTE_ENDS = """
INSERT INTO controlplane_jobend (job_id, at)
SELECT j.id, j.finished_at FROM controlplane_job j
WHERE j.id = ANY(%s) AND NOT j.is_one_off AND EXISTS (
    SELECT 1 FROM controlplane_notificationrule WHERE about = 'jobs' AND is_enabled)
ON CONFLICT (job_id) DO NOTHING
"""

STAMP_DEPENDENCIES = """
UPDATE controlplane_jobdependency d SET met_at = i.met_at, failed_at = i.failed_at
FROM unnest(%(id)s::bigint[], %(met_at)s::timestamptz[], %(failed_at)s::timestamptz[])
     AS i(id, met_at, failed_at)
WHERE d.id = i.id AND d.met_at IS NULL AND d.failed_at IS NULL
"""

HIDE_JOBS = """
WITH hidden AS (
    UPDATE controlplane_job SET deleted_at = %(now)s
    WHERE id = ANY(%(ids)s) AND finished_at IS NOT NULL AND deleted_at IS NULL
    RETURNING id, name, guid, state, owner_id, project_id, is_one_off, finished_at
), freed AS (
    DELETE FROM controlplane_oneoff o USING hidden h WHERE o.job_id = h.id
), untold AS MATERIALIZED (
    SELECT k.id FROM hidden h JOIN controlplane_callback k ON k.job_id = h.id
    WHERE k.ended_at IS NULL ORDER BY k.id FOR NO KEY UPDATE OF k
), abandoned AS (
    UPDATE controlplane_callback k SET state = 'abandoned', ended_at = %(now)s, claim = NULL,
           claimed_until = NULL, last_error = 'what it tells of was deleted'
    FROM untold u WHERE k.id = u.id
)
SELECT h.id, h.project_id, h.is_one_off, h.guid,
       concat_ws(', ', %(why)s, 'job ' || h.id, h.name, 'submitted by ' || u.username,
                 (%(states)s::text[])[h.state + 1] || ' since '
                 || to_char(h.finished_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"'),
                 'guid ' || h.guid) AS text
FROM hidden h JOIN auth_user u ON u.id = h.owner_id ORDER BY h.id
"""

CHOOSE_TASKS = f"""
SELECT p.n, t.id, t.job_id, t.group_id, t.attempt_number, t.index, t.resources, g.resources,
       CASE WHEN (g.cache ->> 'serialize')::boolean THEN t.cache_identity END,
       (SELECT EXISTS (SELECT FROM controlplane_hold
                       WHERE ended_at IS NULL AND project_id IS NOT NULL))
FROM unnest(%(group_id)s::bigint[], %(shape_id)s::bigint[], %(avoid)s::text[],
            %(nominated)s::bigint[], %(prefer)s::bigint[], %(count)s::integer[])
     WITH ORDINALITY AS p(group_id, shape_id, avoid, nominated, prefer, count, n)
JOIN controlplane_taskgroup g ON g.id = p.group_id,
LATERAL (
    SELECT id, job_id, group_id, attempt_number, index, resources, cache_identity
    FROM controlplane_task
    WHERE shape_id = p.shape_id AND group_id = p.group_id
      AND state = {S.PENDING:d} AND NOT attempt_open AND NOT cache_blocked
      AND avoid_cell_ids IS NOT DISTINCT FROM p.avoid::bigint[]
      AND nominated_cell_id IS NOT DISTINCT FROM p.nominated
      AND prefer_cell_id IS NOT DISTINCT FROM p.prefer
      AND (not_before IS NULL OR not_before <= %(now)s)
    ORDER BY index LIMIT p.count
) t
ORDER BY p.n, t.index
"""

_PLACEMENTS = _rows(
    "uid uuid, task_id bigint, group_id bigint, job_id bigint, cell_id bigint, incarnation"
    " text, number integer, concurrency_id bigint"
)
PLACE_TASKS = f"""
WITH placed AS (
    UPDATE controlplane_task t SET
        state = {S.ASSIGNED:d}, attempt_number = i.number, attempt_uid = i.uid, attempt_open = true,
        not_before = NULL, nominated_cell_id = NULL, nominated_until = NULL,
        updated_at = %(now)s
    FROM unnest(%(task_id)s::bigint[], %(number)s::integer[], %(uid)s::uuid[])
         AS i(task_id, number, uid)
    WHERE t.id = i.task_id AND t.state = {S.PENDING:d} AND NOT t.attempt_open
      AND NOT t.cache_blocked
    RETURNING t.id, t.resources
), attempted AS (
    INSERT INTO controlplane_attempt
        (uid, task_id, group_id, job_id, cell_id, incarnation, number, state, phase, phase_number,
         report_seq, charged, charge, start_before, stop_reason, container_id, failure_kind, reason,
         message, result_truncated, created_at, state_since, release_kind, concurrency_id,
         resources)
    SELECT i.uid, i.task_id, i.group_id, i.job_id, i.cell_id, i.incarnation, i.number,
           {S.ASSIGNED:d}, '', 0, 0, '', 0, %(start_before)s, '', '', '', '', '', false,
           %(now)s, %(now)s, '', i.concurrency_id, placed.resources
    FROM {_PLACEMENTS}
    JOIN placed ON placed.id = i.task_id
    RETURNING task_id, job_id, uid
), recorded AS (
    INSERT INTO controlplane_transition
        (job_id, task_id, attempt_uid, from_state, to_state, attempt_state, reason, message,
         actor, at)
    SELECT job_id, task_id, uid, {S.PENDING:d}, {S.ASSIGNED:d}, {S.ASSIGNED:d}, 'placed', '',
           %(actor)s, %(now)s
    FROM attempted
)
SELECT id FROM placed
"""

NOMINATE_TASKS = f"""
WITH i AS MATERIALIZED (
    SELECT cell_id, until, group_id, shape_id,
           sum(count) OVER (PARTITION BY group_id, shape_id ORDER BY n) - count AS first,
           sum(count) OVER (PARTITION BY group_id, shape_id ORDER BY n) AS last
    FROM unnest(%(group_id)s::bigint[], %(shape_id)s::bigint[], %(cell_id)s::bigint[],
                %(count)s::integer[], %(until)s::timestamptz[])
         WITH ORDINALITY AS i(group_id, shape_id, cell_id, count, until, n)
), found AS MATERIALIZED (
    SELECT w.group_id, w.shape_id, t.id, t.n
    FROM (SELECT DISTINCT group_id, shape_id FROM i) w
    CROSS JOIN LATERAL (
        SELECT id, row_number() OVER (ORDER BY avoid_cell_ids IS NOT NULL, index) AS n
        FROM controlplane_task
        WHERE group_id = w.group_id AND state = {S.PENDING:d} AND NOT attempt_open
          AND NOT cache_blocked AND nominated_cell_id IS NULL
          AND (not_before IS NULL OR not_before <= %(now)s) AND shape_id = w.shape_id
    ) t
)
UPDATE controlplane_task t
SET nominated_cell_id = i.cell_id, nominated_until = i.until
FROM found JOIN i ON i.group_id = found.group_id AND i.shape_id = found.shape_id
                 AND found.n > i.first AND found.n <= i.last
WHERE t.id = found.id AND t.state = {S.PENDING:d} AND t.nominated_cell_id IS NULL
"""

FORCE_STOPS = """
UPDATE controlplane_attempt SET stop_forced_at = %s
WHERE job_id = %s AND finished_at IS NOT NULL AND released_at IS NULL
  AND stop_forced_at IS NULL AND (%s::bigint IS NULL OR task_id = %s)
RETURNING uid
"""

LOCK_EXCLUSIVE = """
SELECT a.uid FROM controlplane_attempt a
JOIN controlplane_taskgroup g ON g.id = a.group_id AND g.exclusive = 'lease'
WHERE a.cell_id = %s AND a.released_at IS NULL ORDER BY a.uid FOR NO KEY UPDATE OF a
"""

LOCK_LEASE = "SELECT FROM controlplane_celllease WHERE cell_id = %s FOR NO KEY UPDATE"

HOLD_EXCLUSIVE = """
UPDATE controlplane_attempt a
SET releasable_at = GREATEST(l.expires_at, %(now)s) + make_interval(secs => %(margin)s)
FROM controlplane_celllease l
WHERE a.uid = ANY(%(uids)s) AND l.cell_id = a.cell_id AND l.incarnation = a.incarnation
  AND a.releasable_at IS NULL
"""

EXTEND_SILENT_LEASES = """
WITH silent AS MATERIALIZED (
    SELECT l.cell_id FROM controlplane_celllease l JOIN controlplane_cell c ON c.id = l.cell_id
    WHERE c.pool_id = %s AND c.state <> 'LOST' AND l.silent_ticks > 0
    ORDER BY l.cell_id FOR NO KEY UPDATE OF l
)
UPDATE controlplane_celllease l SET expires_at = GREATEST(l.expires_at, %s)
FROM silent WHERE l.cell_id = silent.cell_id
"""

CLEAR_ALERTS = """
WITH over AS MATERIALIZED (
    SELECT a.id FROM controlplane_alert a
    JOIN unnest(%(kind)s::text[], %(subject)s::text[]) AS g(kind, subject)
      ON g.kind = a.kind AND g.subject = a.subject
    WHERE a.cleared_at IS NULL ORDER BY a.id FOR NO KEY UPDATE OF a
)
UPDATE controlplane_alert a SET cleared_at = %(now)s FROM over WHERE a.id = over.id
"""

RAISE_ALERTS = """
WITH given AS (
    SELECT * FROM unnest(%(kind)s::text[], %(subject)s::text[], %(text)s::text[])
        AS g(kind, subject, text)
), held AS MATERIALIZED (
    SELECT a.id, g.text FROM controlplane_alert a
    JOIN given g ON g.kind = a.kind AND g.subject = a.subject
    WHERE a.cleared_at IS NULL AND a.last_raised_at < %(now)s::timestamptz - interval '1 minute'
    ORDER BY a.id FOR NO KEY UPDATE OF a
), again AS (
    UPDATE controlplane_alert a SET last_raised_at = %(now)s, text = held.text FROM held
    WHERE a.id = held.id
)
INSERT INTO controlplane_alert (kind, subject, text, raised_at, last_raised_at)
SELECT kind, subject, text, %(now)s, %(now)s FROM given
ON CONFLICT (kind, subject) WHERE cleared_at IS NULL DO NOTHING
"""

WRITE_COUNTS = """
UPDATE controlplane_taskgroup g SET counts = i.counts::integer[], killed_by_dependency = i.excused
FROM unnest(%s::bigint[], %s::text[], %s::integer[]) AS i(id, counts, excused)
WHERE g.id = i.id
"""

_FLAGGED = "WHERE id = ANY(%(ids)s)"
REPAIR_FLAG = MappingProxyType(
    {
        Repair.OPEN: f"UPDATE controlplane_task SET attempt_open = true {_FLAGGED}",
        Repair.CLOSE: f"UPDATE controlplane_task SET attempt_open = false {_FLAGGED}",
        Repair.WATCH: f"UPDATE controlplane_job SET is_watched = true {_FLAGGED}",
        Repair.BLOCK: f"UPDATE controlplane_job SET waits_for_jobs = true {_FLAGGED}",
        Repair.MEET: f"UPDATE controlplane_jobdependency SET met_at = %(now)s {_FLAGGED}",
        Repair.FAIL: f"UPDATE controlplane_jobdependency SET failed_at = %(now)s {_FLAGGED}",
    }
)
"""The statement for each flag; the others are states, which are derived."""
