"""Start the trace of a new job, and export the spans of traced jobs in pages of the history."""

from collections.abc import Callable, Sequence
from datetime import datetime
from secrets import token_hex

from django.conf import settings
from structlog.contextvars import get_contextvars

from controlplane.commands.state.cursors import save_cursor
from controlplane.contract.trace_context import read_traceparent
from controlplane.domain.tracing import SpanFacts, derive_spans
from controlplane.queries.convergence.cursors import load_cursor
from controlplane.queries.history_ranges import HistoryPosition, load_position
from controlplane.queries.traces import load_page

NAME = "traces"

_RATIO_BITS = 64

Send = Callable[[Sequence[SpanFacts]], bool]
"""Sends spans; returns whether the receiver has accepted them."""


def start_trace() -> str:
    """Return `trace` of the launches of a new job; empty if it gets none.

    The trace is that of the request, if it has one, whose sampling applies; else the ratio decides.
    """
    if not settings.CELLRUN.tracing:
        return ""
    given = read_traceparent(str(get_contextvars().get("traceparent", "")))
    if given is not None:
        trace_id, parent, is_sampled = given
        return f"{trace_id}-{parent}" if is_sampled else ""
    trace_id = token_hex(16)
    # OpenTelemetry's TraceIdRatioBased: the last 8 bytes decide.
    is_sampled = int(trace_id[16:], 16) < settings.CELLRUN.trace_ratio * 2**_RATIO_BITS
    return trace_id if is_sampled else ""


def export_traces(send: Send, *, now: datetime, pages: int) -> bool:
    """Send the spans that ended with the next pages of the history; return whether more are due.

    Save the cursor only after the receiver has accepted a page, so that no span is lost; a page
    that is sent twice has the same ids. A page has no rows of transactions that may be open.
    """
    found = _read_cursor(now)
    if found is None:
        return False
    after, until = found
    for _ in range(pages):
        page = load_page(after, until)
        spans = [span for row in page.rows for span in derive_spans(row)]
        if spans and not send(spans):
            return False
        after = page.end
        if after >= until:
            break
        _save(after, HistoryPosition(until, 0), now)
    else:
        return True
    _save(after, load_position(), now)
    return False


def _read_cursor(now: datetime) -> tuple[int, int] | None:
    """Return the range that may be exported: behind the last exported row, up to a settled one.

    None: no row is settled yet. The cursor stays, or later transactions would delay it for longer.

    The cursor has the last exported row, an end of the history, and the transaction that was next
    when that end was read: once all earlier ones have ended, no row up to that end is missing.
    """
    cursor = load_cursor(NAME).after
    position = load_position()
    if not cursor:
        _save(position.end, position, now)
        return position.end, position.end
    after, end, next_transaction = map(int, cursor.split(":"))
    settled = position.settles(HistoryPosition(end, next_transaction))
    return (after, end) if settled else None


def _save(after: int, position: HistoryPosition, now: datetime) -> None:
    text = f"{after}:{max(after, position.end)}:{position.next_transaction}"
    save_cursor(NAME, after=text, now=now)
