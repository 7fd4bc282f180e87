"""The section of an attempt's usage: measured amounts beside the request, and time by step."""

from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.admin.badges import bare_amount, length, meter
from controlplane.admin.base import Section, Table
from controlplane.admin.sections.waterfall import AFTER, BEFORE, RUN
from controlplane.domain.jobs.stored_bytes import format_bytes
from controlplane.models import Attempt

_AMOUNTS = {
    "memory_peak_mib": ("memory peak", "memory_mib"),
    "disk_peak_mib": ("disk peak", "disk_mib"),
}
_STEPS = (*BEFORE, RUN, *AFTER)
_Row = tuple[Any, Any, Any]


def usage_sections(attempt: Attempt) -> list[Section]:
    """Return what an ended attempt used; none if its cell reported nothing."""
    rows = list(_rows(attempt, attempt.usage or {}))
    columns = ("", "used", "of the request")
    return [Table("Usage", anchor="usage", columns=columns, rows=rows)] if rows else []


def _rows(attempt: Attempt, usage: Mapping[str, Any]) -> Iterator[_Row]:
    """Yield name, amount and its share of the request, with values that pages know first."""
    requested: Mapping[str, int] = attempt.resources or attempt.group.resources
    steps = dict(usage.get("steps") or {})
    known = {"cpu_seconds", "pulled_bytes", "steps", *_AMOUNTS}
    if (seconds := usage.get("cpu_seconds")) is not None:
        yield "CPU time", length(seconds), _cpu_share(attempt, seconds, requested)
    for name, (text, resource) in _AMOUNTS.items():
        if (used := usage.get(name)) is not None:
            limit = requested.get(resource)
            share = meter(resource, round(used), limit) if limit else ""
            yield text, f"{used:g} MiB", share
    if (pulled := usage.get("pulled_bytes")) is not None:
        yield "pulled for its image", format_bytes(pulled), ""
    for name, value in usage.items():
        if name not in known:
            yield name.replace("_", " "), value, ""
    for name in sorted(steps, key=lambda it: _STEPS.index(it) if it in _STEPS else len(_STEPS)):
        yield f"step {name}", length(steps[name]), ""


def _cpu_share(attempt: Attempt, seconds: float, requested: Mapping[str, int]) -> Any:
    """Return the average number of cores while the program ran, of those requested."""
    limit = requested.get("cpu_millis")
    if not (limit and attempt.started_at and attempt.finished_at):
        return ""
    ran = (attempt.finished_at - attempt.started_at).total_seconds()
    average = round(1000 * seconds / ran) if ran > 0 else 0
    return meter("cpu_millis", average, limit) if average else bare_amount("cpu_millis", limit)
