"""Render the last hour for the overview: failures by reason, and lines by minute."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.admin.activity import failures_address
from controlplane.admin.badges import length, page_link
from controlplane.admin.sections.charts import Line, line_chart
from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import COLOURS, REASONS, Reason
from controlplane.models import Job
from controlplane.queries.pages.hour import HOUR, Minute, load_failures, load_minutes


def _sampled(minute: Minute, number: int) -> int | None:
    return number if minute.is_sampled else None


_CHARTS: tuple[tuple[str, str, tuple[Line[Minute], ...]], ...] = (
    (
        "Tasks per minute",
        "tasks",
        (
            Line("started", COLOURS[S.RUNNING], lambda minute: _sampled(minute, minute.started)),
            Line(
                "succeeded", COLOURS[S.SUCCEEDED], lambda minute: _sampled(minute, minute.succeeded)
            ),
            Line("failed", COLOURS[S.FAILED], lambda minute: _sampled(minute, minute.failed)),
        ),
    ),
    (
        "Time until the first start",
        "seconds",
        (
            Line("median", COLOURS[S.RUNNING], lambda minute: minute.latency(0.5)),
            Line("95th percentile", COLOURS[S.ASSIGNED], lambda minute: minute.latency(0.95)),
        ),
    ),
    (
        "Open work",
        "tasks",
        (
            Line("on cells", COLOURS[S.RUNNING], lambda minute: minute.held),
            Line("waiting", COLOURS[S.PENDING], lambda minute: minute.waiting),
        ),
    ),
)


def charts(now: datetime) -> list[dict[str, Any]]:
    """Return the charts of the last hour, each with its figures as a table."""
    minutes = load_minutes(now)
    totals = Minute(now)
    for minute in minutes:
        totals.started += minute.started
        totals.succeeded += minute.succeeded
        totals.failed += minute.failed
        totals.killed += minute.killed
        for bucket, number in enumerate(minute.latencies):
            totals.latencies[bucket] += number
    summaries = (
        f"{totals.started} started, {totals.succeeded} succeeded, {totals.failed} failed,"
        f" {totals.killed} killed",
        _summarize_latency(totals),
        _summarize_work(minutes),
    )
    return [
        line_chart(title, unit, lines, minutes, summary)
        for (title, unit, lines), summary in zip(_CHARTS, summaries, strict=True)
    ]


def _summarize_latency(totals: Minute) -> str:
    half, most = totals.latency(0.5), totals.latency(0.95)
    if half is None or most is None:
        return "no task started"
    return f"half of the tasks within {length(half)}, 95 % within {length(most)}"


def _summarize_work(minutes: Sequence[Minute]) -> str:
    known = [minute for minute in minutes if minute.held is not None]
    if not known:
        return "no samples"
    held = max(minute.held or 0 for minute in known)
    waiting = max(minute.waiting or 0 for minute in known)
    return (
        f"at most {_average(held)} on cells and {_average(waiting)} waiting (average of a minute)"
    )


def _average(value: float) -> str:
    """Return an average of tasks, with a decimal only if there is a fraction."""
    return f"{value:.1f}".removesuffix(".0")


def failures(now: datetime) -> list[dict[str, Any]]:
    """Return the failures of the last hour by reason, with links to the jobs that failed last."""
    found = load_failures(now)
    ids = {key for item in found for key in item.job_ids}
    jobs = Job.objects.visible().only("name").in_bulk(list(ids))
    return [
        {
            "reason": REASONS[Reason(item.reason)],
            **{
                name: _count(number, kind=kind, reason=item.reason, since=now - HOUR)
                for name, kind, number in (
                    ("tasks", "failed tasks", item.tasks),
                    ("retried", "retried", item.retried),
                )
            },
            "jobs": _job_links(item.job_ids, jobs),
        }
        for item in found
    ]


def _count(number: int, **filters: Any) -> SafeString | int:
    """Return a number of failures with a link to them."""
    if not number:
        return 0
    link = '<a class="cellrun-link" href="{}">{}</a>'
    return format_html(link, failures_address(**filters), number)


def _job_links(ids: Sequence[int], jobs: Mapping[int, Job]) -> list[SafeString | str]:
    return [page_link("job", key, jobs[key]) for key in ids if key in jobs]
