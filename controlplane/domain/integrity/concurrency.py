"""Invariants of concurrency keys."""

from collections.abc import Iterator

from controlplane.domain.integrity.invariant import Finding, invariant
from controlplane.domain.integrity.rows import IntegrityRows


@invariant(
    80,
    "A concurrency key has at most as many attempts that are not released as the largest limit of"
    " their jobs.",
    upheld_by="commands.placement.limits, under a lock of the key",
)
def within_limit(rows: IntegrityRows) -> Iterator[Finding]:
    for key in rows.keys:
        if key.limit is not None and key.held > key.limit:
            yield Finding(key, f"{key.held} attempts of it are not released, allowed: {key.limit}")


@invariant(
    81,
    "An attempt has the concurrency key of its job, or none if the job has none.",
    upheld_by="commands.placement.limits",
)
def key_of_its_job(rows: IntegrityRows) -> Iterator[Finding]:
    for attempt in rows.attempts:
        job = rows.job_of.get(attempt.job_id)
        if job is not None and attempt.concurrency_id != job.concurrency_id:
            yield Finding(attempt, f"key {attempt.concurrency_id}, its job: {job.concurrency_id}")
