"""Render small page elements: state badges, counts, links and durations."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.db.models import Model
from django.urls import get_script_prefix, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from controlplane.contract.states import TaskState
from controlplane.domain.jobs.one_offs import Lifecycle
from controlplane.domain.jobs.stored_bytes import format_bytes
from controlplane.domain.state.states import COLOURS, CallbackState, CellState

CELL_COLOURS = {
    CellState.READY: COLOURS[TaskState.SUCCEEDED],
    CellState.CORDONED: COLOURS[TaskState.PENDING],
    CellState.DRAINING: COLOURS[TaskState.ASSIGNED],
    CellState.QUARANTINED: COLOURS[TaskState.FAILED],
    CellState.LOST: COLOURS[TaskState.FAILED],
}
CALLBACK_COLOURS = {
    CallbackState.WAITING: COLOURS[TaskState.PENDING],
    CallbackState.CLAIMED: COLOURS[TaskState.RUNNING],
    CallbackState.DELIVERED: COLOURS[TaskState.SUCCEEDED],
    CallbackState.ABANDONED: COLOURS[TaskState.FAILED],
}
LIFECYCLE_COLOURS = {
    Lifecycle.PENDING: COLOURS[TaskState.PENDING],
    Lifecycle.RUNNING: COLOURS[TaskState.RUNNING],
    Lifecycle.COMPLETED: COLOURS[TaskState.SUCCEEDED],
    Lifecycle.RESOLVING: COLOURS[TaskState.BUILDING],
}
NOTHING = "–"


def state_badge(state: int | None) -> SafeString:
    """Return a state with its name and colour in Iris's dashboard."""
    if state is None:
        return mark_safe(NOTHING)
    known = TaskState(state)
    return _badge(known.name.lower(), COLOURS[known])


def cell_badge(state: str) -> SafeString:
    """Return the state of a cell."""
    return _badge(state.lower(), CELL_COLOURS[CellState(state)])


def callback_badge(state: str) -> SafeString:
    """Return the state of a callback."""
    return _badge(state, CALLBACK_COLOURS[CallbackState(state)])


def lifecycle_badge(lifecycle: Lifecycle) -> SafeString:
    """Return the lifecycle of a one-off task, as Diego names it."""
    return _badge(lifecycle.lower(), LIFECYCLE_COLOURS[lifecycle])


def flag_badge(text: str, *, good: bool) -> SafeString:
    """Return a short text in green or red."""
    return _badge(text, COLOURS[TaskState.SUCCEEDED if good else TaskState.FAILED])


def _badge(name: str, colour: str) -> SafeString:
    return format_html(
        '<span class="cellrun-status status-{}" style="--status: {}">{}</span>',
        name.replace(" ", "-"),
        colour,
        name,
    )


def counts_badges(counts: Mapping[int, int], **filters: Any) -> SafeString:
    """Return counts by state in the order of a task's life: `1 pending 3 running`.

    With `filters`, each count links to the list of these tasks.
    """
    parts = [(state, colour) for state, colour in COLOURS.items() if counts.get(state)]
    if not parts:
        return mark_safe(NOTHING)
    inner = format_html_join(
        " ", "{}", ((_count(state, colour, counts[state], filters),) for state, colour in parts)
    )
    return format_html('<span class="cellrun-counts">{}</span>', inner)


def _count(state: TaskState, colour: str, count: int, filters: Mapping[str, Any]) -> SafeString:
    name = state.name.lower()
    if not filters:
        return format_html(
            '<span class="cellrun-count" style="--status: {}" title="{}"><b>{}</b> {}</span>',
            colour,
            name,
            count,
            name,
        )
    _, address = list_link("task", "", **filters, state__exact=int(state))
    return format_html(
        '<a class="cellrun-count" style="--status: {}" href="{}"><b>{}</b> {}</a>',
        colour,
        address,
        count,
        name,
    )


def state_bar(counts: Mapping[int, int]) -> SafeString:
    """Return a stacked bar of counts by state; the counts stand beside it in words."""
    parts = ((colour, counts[it]) for it, colour in COLOURS.items() if counts.get(it))
    inner = format_html_join("", '<span style="--status: {}; flex-grow: {}"></span>', parts)
    return format_html('<span class="cellrun-bar" aria-hidden="true">{}</span>', inner)


def with_note(badge: SafeString, note: str) -> SafeString:
    """Return a badge with a line in small type below it."""
    if not note:
        return badge
    return format_html('{}<span class="cellrun-note">{}</span>', badge, note)


def page_link(model: str, key: Any, text: Any, *, anchor: str = "") -> SafeString | str:
    """Return a link to the page of a row, or to a section of it; a dash if `key` is None."""
    if key is None:
        return NOTHING
    return _link(f"controlplane_{model}", key, text, anchor)


def flower_link(path: str) -> SafeString | str:
    """Return a link to a page of Flower, if the address of Flower is set."""
    address = settings.CELLRUN.flower_url
    if not address:
        return ""
    return format_html('<a class="cellrun-link" href="{}/{}">Flower</a>', address, path)


def row_link(row: Model, text: Any) -> SafeString:
    """Return a link to the page of a row of any model, such as a user."""
    opts = row._meta
    return _link(f"{opts.app_label}_{opts.model_name}", row.pk, text)


def _link(model: str, key: Any, text: Any, anchor: str = "") -> SafeString:
    address = _page_address(model, key) + (f"#{anchor}" if anchor else "")
    return format_html('<a class="cellrun-link" href="{}">{}</a>', address, text)


def _page_address(model: str, key: Any) -> str:
    """Return the path of a row's page; a page may link to 500 rows, and reversing takes 0.1 ms."""
    if isinstance(key, int | UUID):
        before, after = _around_key(model, get_script_prefix())
        return f"{before}{key}{after}"
    return reverse(f"admin:{model}_change", args=[key])


@cache
def _around_key(model: str, script_prefix: str) -> tuple[str, str]:
    """Return the parts of a page's path before and after its key. The prefix is part of it."""
    del script_prefix
    before, _, after = reverse(f"admin:{model}_change", args=[0]).rpartition("0")
    return before, after


def count_link(model: str, count: Any, **query: Any) -> SafeString:
    """Return a count that links to the filtered list of what it counts."""
    text, address = list_link(model, str(count), **query)
    return format_html('<a class="cellrun-link" href="{}">{}</a>', address, text)


def list_link(model: str, text: str, **query: Any) -> tuple[str, str]:
    """Return the text and the URL of a filtered list."""
    address = reverse(f"admin:controlplane_{model}_changelist")
    return text, f"{address}?{urlencode(query)}"


def instant(at: datetime | None) -> SafeString | str:
    """Return an instant to the second, in UTC; its tooltip has microseconds."""
    if at is None:
        return NOTHING
    local = timezone.localtime(at)
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        local.isoformat(),
        local.strftime("%Y-%m-%d %H:%M:%S.%f %Z"),
        local.strftime("%Y-%m-%d %H:%M:%S"),
    )


def duration(start: datetime | None, end: datetime | None) -> SafeString | str:
    """Return the time between two instants: `0.41 s`, `1 m 03 s`, `2 h 05 m`, `3 d 4 h`.

    Without an end, the page counts the time since the start.
    """
    if start is None:
        return NOTHING
    if end is not None:
        return length((end - start).total_seconds())
    return format_html('<span data-since="{}">since {}</span>', start.isoformat(), instant(start))


def length(seconds: float) -> str:
    """Return a length of time in the format of `duration`."""
    if seconds < 60:
        return _unbroken(f"{seconds:.2f} s")
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return _unbroken(f"{minutes} m {rest:02} s")
    hours, minutes = divmod(minutes, 60)
    return _unbroken(
        f"{hours} h {minutes:02} m" if hours < 24 else f"{hours // 24} d {hours % 24} h"
    )


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def quantities(amounts: Mapping[str, Any]) -> str:
    """Return resources with units: `0.5 cpu, 64 MiB memory`."""
    return ", ".join(quantity(name, amount) for name, amount in amounts.items() if amount)


def quantity(name: str, amount: int) -> str:
    """Return one resource with its unit and name: `64 MiB memory`."""
    return f"{bare_amount(name, amount)} {name.removesuffix('_millis').removesuffix('_mib')}"


def bare_amount(name: str, amount: int) -> str:
    """Return the amount of a resource with its unit: `0.5`, `64 MiB`."""
    if name == "cpu_millis":
        return f"{amount / 1000:g}"
    if name.endswith("_mib"):
        return f"{amount // 1024} GiB" if amount and amount % 1024 == 0 else f"{amount} MiB"
    return format_bytes(amount) if name.endswith("_bytes") else str(amount)


def core_hours(seconds: float) -> str:
    """Return CPU seconds as `12.5 core h`, or `12.5 core s` if they are few."""
    return _hours(seconds, "core")


def gib_hours(mib_seconds: float) -> str:
    """Return MiB times seconds as `12.5 GiB h`, or `12.5 GiB s` if they are few."""
    return _hours(mib_seconds / 1024, "GiB")


def gpu_hours(seconds: float) -> str:
    """Return GPU seconds as `12.5 GPU h`, or `12.5 GPU s` if they are few."""
    return _hours(seconds, "GPU")


def _hours(seconds: float, unit: str) -> str:
    """Return hours with three digits, from 100 on in whole hours, and below 0.01 as seconds."""
    hours = seconds / 3600
    if 0 < abs(hours) < 0.01:
        return f"{seconds:.2g} {unit} s" if abs(seconds) >= 0.001 else f"0 {unit} s"
    return f"{hours:,.0f} {unit} h" if abs(hours) >= 100 else f"{hours:.3g} {unit} h"


def meter(name: str, used: int, limit: int | None, *, warns: bool = True) -> SafeString | str:
    """Return the used part of `limit` as a bar and a text; without a limit the used amount.

    `warns`: whether a full bar has the colour of a warning.
    """
    if limit is None:
        return bare_amount(name, used) if used else NOTHING
    share = 100 if used >= limit else round(100 * used / limit)
    return format_html(
        '<span class="cellrun-meter{}"><span style="width: {}%"></span></span>'
        '<span class="cellrun-note">{} of {}</span>',
        " cellrun-full" if warns and used >= limit else "",
        share,
        bare_amount(name, used),
        bare_amount(name, limit),
    )


def figures(amounts: Mapping[str, Any]) -> str:
    """Return named numbers without zeros: `placed 3, ended 1`."""
    return ", ".join(_unbroken(f"{name} {number}") for name, number in amounts.items() if number)


def shortened(text: str, width: int) -> str:
    """Return the text in one line, cut to `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def small_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> SafeString:
    """Return a table for a form."""
    head = format_html_join("", '<th scope="col">{}</th>', ((name,) for name in columns))
    cells = (format_html_join("", "<td>{}</td>", ((value,) for value in row)) for row in rows)
    body = format_html_join("", "<tr>{}</tr>", ((row,) for row in cells))
    return format_html(
        '<table class="cellrun-table cellrun-small"><thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody></table>",
        head,
        body,
    )
