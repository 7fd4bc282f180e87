"""Evict an entry on request, with a line in the audit log."""

from datetime import datetime

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.cache.evict import evict_entries
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.errors import NotFound
from controlplane.queries.sql import rows

_DESCRIBE = """
SELECT e.key, e.project_id, concat_ws(', ',
           CASE WHEN e.is_shared THEN 'of domain ' || d.name
                ELSE 'of project ' || d.name || '/' || p.name END,
           'populated by job ' || e.job_id, 'task ' || e.task_id, 'hits: ' || e.hits)
FROM controlplane_cacheentry e
JOIN controlplane_project p ON p.id = e.project_id
JOIN controlplane_domain d ON d.id = e.domain_id
WHERE e.id = %s
"""


def evict_entry(*, entry_id: int, actor: str, reason: str = "", now: datetime) -> None:
    """Evict an entry and write an audit line. Raise NotFound.

    An entry that is evicted already does not change.
    """
    why = "; ".join(filter(None, (f"evicted by {actor}", reason.strip())))

    def work() -> None:
        found = rows(_DESCRIBE, [entry_id])
        if not found:
            raise NotFound(f"there is no cache entry {entry_id}")
        if not evict_entries([entry_id], why, now=now):
            return
        [(key, project_id, text)] = found
        entry = AuditEntry(
            Action.EVICT_CACHE_ENTRY,
            f"cache entry {key}",
            "; ".join(filter(None, (reason.strip(), text))),
            project_id=project_id,
        )
        record(entry, actor=actor, now=now)

    run_in_transaction(work)
