"""The changes of a cell: quarantines, orders of operators, losses and returns."""

from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.admin.badges import cell_badge, instant, list_link
from controlplane.admin.base import Table
from controlplane.models import Cell, CellChange

BEFORE = "changes_before"
"""The query parameter of a page: the id of the change before which it begins."""

ANCHOR = "changes"
_SHOWN = 30
_MAX_ID = (1 << 63) - 1


def changes_table(cell: Cell, before: str | None, *, may_view_audit: bool) -> Table:
    """Return a page of the changes of a cell, newest first."""
    is_id = before is not None and before.isascii() and before.isdigit() and len(before) < 19
    found = list(
        CellChange.objects.filter(
            cell=cell, id__lt=int(before or 0) if is_id else _MAX_ID
        ).order_by("-id")[: _SHOWN + 1]
    )
    shown = found[:_SHOWN]
    more = None
    if len(found) > _SHOWN:
        more = ("Older changes", f"?{BEFORE}={shown[-1].pk}#{ANCHOR}")
    elif may_view_audit:
        more = list_link(
            "auditline", "Audit lines of this cell", subject__exact=f"cell {cell.name}"
        )
    return Table(
        "Changes of the cell",
        anchor=ANCHOR,
        columns=("when", "state", "reason", "by"),
        rows=[
            (instant(row.at), _states(row), row.reason, row.actor or "cell or convergence")
            for row in shown
        ],
        empty="none recorded",
        more=more,
    )


def _states(change: CellChange) -> SafeString:
    if change.from_state == change.to_state:
        return cell_badge(change.to_state)
    return format_html("{} → {}", cell_badge(change.from_state), cell_badge(change.to_state))
