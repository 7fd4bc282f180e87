"""The progress of a drain: how many attempts are left, and until when."""

from datetime import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.admin.badges import instant, list_link
from controlplane.admin.base import Prose
from controlplane.queries.cells.drain import DrainProgress


def drain_progress(cell_id: int, drain: DrainProgress, *, now: datetime, is_linked: bool) -> Prose:
    """Return the progress as a bar and a sentence.

    `is_linked`: whether the user may view the attempts to which the counts link.
    """
    ended = drain.total - drain.left
    bar = format_html(
        '<progress class="cellrun-progress" value="{}" max="{}" aria-label="ended attempts">'
        "</progress>",
        ended,
        drain.total or 1,
    )
    held = {"held": "yes"}
    left = _count(drain.left, cell_id, is_linked, **held)
    if drain.left:
        sentence = format_html(
            "{} of {} attempts left, {}", left, drain.total, _describe_end(drain, now)
        )
    elif drain.total:
        sentence = format_html(
            "All {} attempts have ended, the last {}.", drain.total, instant(drain.empty_since)
        )
    else:
        sentence = format_html("{}", "The cell had no attempts.")
    paragraphs = [format_html("{} {}", bar, sentence)]
    if ended and drain.since is not None:
        released = _count(ended, cell_id, is_linked, released_at__gte=drain.since.isoformat())
        paragraphs.append(format_html("{} ended since {}", released, instant(drain.since)))
    return Prose("Drain", anchor="drain", paragraphs=paragraphs)


def summary(drain: DrainProgress) -> SafeString:
    """Return what a list shows: the number of attempts that are left, or since when none is."""
    if drain.empty_since is None:
        return format_html("{} attempts left", drain.left)
    return format_html("drained: no attempts left since {}", instant(drain.empty_since))


def _describe_end(drain: DrainProgress, now: datetime) -> SafeString:
    if drain.longest_until is None:
        return format_html("{}", "at least one of them without a time limit")
    until = drain.longest_until
    form = "%H:%M UTC" if until.date() == now.date() else "%Y-%m-%d %H:%M UTC"
    return format_html(
        "the longest until {} ({}), grace period included", until.strftime(form), instant(until)
    )


def _count(number: int, cell_id: int, is_linked: bool, **query: str) -> SafeString:
    if not is_linked:
        return format_html("{}", number)
    text, address = list_link("attempt", str(number), cell__id__exact=cell_id, **query)
    return format_html('<a class="cellrun-link" href="{}">{}</a>', address, text)
