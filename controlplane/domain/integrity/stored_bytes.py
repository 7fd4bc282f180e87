"""The invariant of the stored bytes of projects."""

from collections.abc import Iterator

from controlplane.domain.integrity.invariant import Finding, Repair, invariant
from controlplane.domain.integrity.rows import IntegrityRows


@invariant(
    70,
    "The total of a project's stored bytes is the sum of the counted sizes of its files.",
    upheld_by="commands.tenancy.stored_bytes (one statement)",
    repair="the counted sizes are added up again",
)
def totals_right(rows: IntegrityRows) -> Iterator[Finding]:
    for total in rows.totals:
        if total.total_bytes != total.counted_bytes:
            text = f"the total is {total.total_bytes} bytes, counted are {total.counted_bytes}"
            yield Finding(total, text, Repair.SUM, total.project_id)
