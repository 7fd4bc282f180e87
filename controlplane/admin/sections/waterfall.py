"""The waterfall: attempts on one time axis, with the steps of their cells."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar

from django.utils.safestring import SafeString

from controlplane.admin.badges import length, page_link
from controlplane.admin.base import Section
from controlplane.contract.states import TaskState
from controlplane.domain.state.states import COLOURS
from controlplane.models import Attempt

MAX_LINES = 60
# More lines are folded until the reader opens them.
_OPEN_LINES = 15
_TICKS = 4
_WAITING = "#8c959f"
# The order in which a cell runs the steps: those before the program, and those after it.
BEFORE = ("workspace", "briefing", "inputs", "pull", "secrets", "gang", "permit", "create", "start")
RUN = "wait"
AFTER = ("collect", "outputs", "checkpoint")
_BEFORE_COLOURS = ("#8250df", "#b083f0")
_AFTER_COLOURS = ("#57606a", "#8c959f")


Steps = Mapping[str, float] | None
"""Seconds by step, which the cell reports at the end of an attempt."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of an attempt between two instants, which a page shows as a bar."""

    name: str
    begin: datetime
    end: datetime
    colour: str

    @property
    def text(self) -> str:
        """Return its name and length: `pull 3.20 s`."""
        return f"{self.name} {length((self.end - self.begin).total_seconds())}"


@dataclass(frozen=True, slots=True)
class WaterfallLine:
    """An attempt. `bars`: left edge and width in percent of the axis, colour and text."""

    name: SafeString | str
    state: str
    bars: Sequence[tuple[str, str, str, str]]

    @property
    def text(self) -> str:
        """Return the parts in words."""
        return ", ".join(text for _, _, _, text in self.bars)


@dataclass(frozen=True, slots=True)
class Waterfall(Section):
    """Attempts on one time axis. `ticks`: times since its begin at equal distances."""

    template: ClassVar[str] = "controlplane/section_waterfall.html"
    lines: Sequence[WaterfallLine] = ()
    ticks: Sequence[str] = ()
    is_open: bool = True


def waterfall_sections(
    attempts: Iterable[tuple[str, Attempt, Steps]],
    *,
    now: datetime,
    since: datetime | None = None,
    title: str = "Attempts over time",
) -> list[Section]:
    """Return the waterfall of named attempts, earliest first; of more, the newest MAX_LINES.

    `since`: the begin of the axis, which then ends now; None: the axis has what the attempts need.
    """
    chosen = sorted(attempts, key=lambda item: (item[1].created_at, item[1].pk))
    hidden, chosen = max(0, len(chosen) - MAX_LINES), chosen[-MAX_LINES:]
    spans = [
        (name, attempt, list(_clipped(_spans(attempt, steps, now), since, now)))
        for name, attempt, steps in chosen
    ]
    ends = [span.end for _, _, parts in spans for span in parts]
    if not ends:
        return []
    begin = since or min(attempt.created_at for _, attempt, _ in chosen)
    end = now if since else max(ends)
    whole = max((end - begin).total_seconds(), 0.001)
    lines = [
        WaterfallLine(
            page_link("attempt", attempt.pk, name),
            TaskState(attempt.state).name.lower(),
            [_bar(span, begin, whole) for span in parts],
        )
        for name, attempt, parts in spans
        if parts
    ]
    return [
        Waterfall(
            title + (f" (the newest {MAX_LINES})" if hidden else ""),
            anchor="waterfall",
            lines=lines,
            ticks=_backwards(whole) if since else _forwards(whole),
            is_open=len(lines) <= _OPEN_LINES,
        )
    ]


def _forwards(whole: float) -> list[str]:
    return [length(whole * tick / _TICKS) for tick in range(_TICKS + 1)]


def _backwards(whole: float) -> list[str]:
    ago = [whole * tick / _TICKS for tick in range(_TICKS, 0, -1)]
    return [*(f"{length(seconds)} ago" for seconds in ago), "now"]


def _clipped(spans: Iterable[Span], since: datetime | None, now: datetime) -> Iterator[Span]:
    """Yield the parts of spans that the axis has."""
    for span in spans:
        if since is None:
            yield span
        elif span.end > since and span.begin < now:
            yield replace(span, begin=max(span.begin, since), end=min(span.end, now))


def _bar(span: Span, begin: datetime, whole: float) -> tuple[str, str, str, str]:
    left = 100 * (span.begin - begin).total_seconds() / whole
    width = 100 * (span.end - span.begin).total_seconds() / whole
    return f"{left:.3f}%", f"{width:.3f}%", span.colour, span.text


def _spans(attempt: Attempt, steps: Steps, now: datetime) -> Iterator[Span]:
    """Yield the parts of an attempt in order.

    A cell reports the lengths of its steps and when the program began. The steps before it are
    drawn up to that instant, and what precedes them is the way from placement to the cell.
    """
    steps = steps or {}
    end = attempt.finished_at or now
    started = min(attempt.started_at or end, end)
    before = [(name, float(steps[name])) for name in BEFORE if steps.get(name)]
    building = min(
        timedelta(seconds=sum(seconds for _, seconds in before)), started - attempt.created_at
    )
    first = started - building if before else attempt.created_at
    if first > attempt.created_at:
        yield Span("on the way", attempt.created_at, first, _WAITING)
    if before:
        yield from _in_turn(before, first, started, _BEFORE_COLOURS)
    elif started > attempt.created_at:
        yield Span("preparation", attempt.created_at, started, _BEFORE_COLOURS[0])
    if attempt.started_at is not None:
        yield Span("run", started, end, COLOURS[TaskState(attempt.state)])
    after = [(name, float(steps[name])) for name in AFTER if steps.get(name)]
    yield from _in_turn(after, end, None, _AFTER_COLOURS)


def _in_turn(
    steps: Sequence[tuple[str, float]],
    begin: datetime,
    limit: datetime | None,
    colours: tuple[str, str],
) -> Iterator[Span]:
    """Yield steps one after the other, none of them after `limit`."""
    for number, (name, seconds) in enumerate(steps):
        end = begin + timedelta(seconds=seconds)
        end = min(end, limit) if limit is not None else end
        if end > begin:
            yield Span(name, begin, end, colours[number % 2])
        begin = end
