"""The section "Concurrency key" of a job: its rule, and the jobs whose tasks hold the key."""

from typing import Any

from controlplane.admin.badges import page_link
from controlplane.admin.base import Section, Table
from controlplane.models import Job
from controlplane.queries.placement.concurrency import load_key_jobs

_SHOWN = 20


def concurrency_sections(job: Job) -> list[Section]:
    """Return the rule of the key and the jobs that hold it; nothing without a key."""
    rule = job.spec.get("concurrency")
    if job.concurrency_id is None or not rule:
        return []
    held = load_key_jobs([job.concurrency_id]).get(job.concurrency_id, [])
    total = sum(tasks for _, tasks in held)
    text = f"no task of the project holds the key {rule['key']} now"
    return [
        Table(
            "Concurrency key",
            columns=("key", "tasks on cells", "limit", "starts", "if the limit is used up"),
            rows=[
                (
                    rule["key"],
                    total,
                    "" if rule.get("limit") is None else rule["limit"],
                    _rate(rule.get("starts")),
                    rule.get("on_conflict", "wait"),
                )
            ],
        ),
        Table(
            "Jobs that hold the key",
            columns=("job", "tasks on cells"),
            rows=[(page_link("job", key, key), tasks) for key, tasks in held[:_SHOWN]],
            empty=text,
        ),
    ]


def _rate(starts: Any) -> str:
    return f"at most {starts['count']} in {starts['per_seconds']} s" if starts else ""
