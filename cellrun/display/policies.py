"""Render pools, quotas and usage as tables for a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cellrun.display.listing import new_table
from cellrun.display.render import stored_text
from cellrun.documents import Pool, Quota

_AMOUNTS = ("requested", "used", "wasted")
_UNITS = {"memory_mib": " MiB", "disk_mib": " MiB"}


def pool_table(pools: Iterable[Pool]) -> Table:
    """Render one line per pool."""
    table = new_table("POOL", "SEQUENCER", "SELECTOR", "ORDER", "PREEMPTION", "TOKENS")
    for pool in pools:
        table.add_row(
            pool["name"],
            pool["sequencer"],
            pool["selector"],
            "strict fifo" if pool["strict_fifo"] else "best effort",
            "on" if pool["preemption"] else "off",
            _value(pool["tokens"]) if pool["tokens"] else "",
        )
    return table


def pool_page(pool: Pool) -> RenderableType:
    """Render every field of a pool's policy."""
    table = new_table("POLICY", "VALUE")
    for name, value in pool.items():
        if name != "name":
            table.add_row(name, _value(value))
    return Group(Text.assemble("pool ", (pool["name"], "bold")), Text(), table)


def quota_table(quotas: Iterable[Quota]) -> Table:
    """Render one line per quota, with usage and limits."""
    table = new_table(
        "QUOTA OF", "CPU", "MEMORY", "TASKS", "JOBS", "WAITING", "STORED", "WEIGHT", "BAND"
    )
    for quota in quotas:
        table.add_row(
            f"{quota['kind']} {quota['name']}",
            _resource(quota, "cpu"),
            _resource(quota, "memory_mib"),
            _count(quota, "running_tasks"),
            _count(quota, "running_jobs"),
            _count(quota, "pending_tasks"),
            _stored(quota),
            f"{quota['weight']:g}",
            quota["highest_band"],
        )
    return table


def quota_page(quota: Quota) -> RenderableType:
    """Render all limits and usage of a quota."""
    table = new_table("LIMIT", "IN USE")
    for name in ("running_tasks", "running_jobs", "pending_tasks"):
        table.add_row(name.replace("_", " "), _count(quota, name) or "0")
    if stored := _stored(quota):
        table.add_row("stored", stored)
    used = quota["usage"]["resources"] if quota["usage"] else {}
    for name in dict.fromkeys([*quota["resources"], *used]):
        table.add_row(name.removesuffix("_mib"), _resource(quota, name))
    head = Text.assemble(
        f"{quota['kind']} ",
        (quota["name"], "bold"),
        f"  weight {quota['weight']:g}  highest band {quota['highest_band']}",
        "  (default quota)" if quota["is_default"] and quota["kind"] != "default" else "",
    )
    return Group(head, Text(), table)


def usage_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Render one line per row, in core hours and GiB hours."""
    keys = [name for name in ("month", "project", "user", "job") if rows[0][name] is not None]
    table = new_table(
        *(name.upper() for name in keys),
        *("ATTEMPTS", "CORE H", "USED", "WASTED", "GIB H", "USED", "WASTED", "PEAK", "GPU H"),
    )
    for row in rows:
        cores = [row[f"{what}_cpu_seconds"] / 3600 for what in _AMOUNTS]
        memory = [row[f"{what}_memory_mib_seconds"] / 1024 / 3600 for what in _AMOUNTS]
        table.add_row(
            *(row[name] for name in keys),
            str(row["attempts"]),
            *map(_hours, cores),
            *map(_hours, memory),
            f"{row['memory_peak_mib']:.0f} MiB",
            _hours(row["requested_gpu_seconds"] / 3600),
        )
    return table


def _hours(value: float) -> str:
    if 0 < abs(value) < 0.001:
        return "<0.001"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _resource(quota: Quota, name: str) -> str:
    used = quota["usage"]["resources"].get(name, 0) if quota["usage"] else 0
    limit = quota["resources"].get(name)
    return _of(used, limit, _UNITS.get(name, ""))


def _count(quota: Quota, name: str) -> str:
    limits: Mapping[str, int | None] = quota  # type: ignore[assignment]
    usage: Mapping[str, int] | None = quota["usage"]  # type: ignore[assignment]
    return _of(usage[name] if usage else 0, limits[name], "")


def _stored(quota: Quota) -> str:
    used = (quota["usage"]["stored_bytes"] or 0) if quota["usage"] else 0
    return stored_text(used, quota["stored_bytes"])


def _of(used: float, limit: float | None, unit: str) -> str:
    """Return `3 of 7`; without a limit the usage alone, and nothing if that is zero."""
    if limit is None:
        return f"{used:.15g}{unit}" if used else ""
    return f"{used:.15g} of {limit:.15g}{unit}"


def _value(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"
        case list():
            return ", ".join(map(str, value)) or "none"
    return str(value)
