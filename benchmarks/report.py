"""What comes out: tables for people, JSON for comparison, and on which machine it was."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("celery", "kombu", "redis", "Django", "psycopg", "flower", "numpy")


@dataclass(slots=True)
class Result:
    """One benchmark's outcome. `rows` are printed; `figures` hold everything, every run of it."""

    id: str
    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def median(values: Iterable[float]) -> float:
    """The middle of several runs."""
    return statistics.median(values)


def others_note(cores: Iterable[float]) -> str:
    """Return the load of other processes: a busy machine makes the figures unreliable."""
    return f"Meanwhile other programs used {median(cores):.1f} of {os.cpu_count()} cores."


def show(result: Result) -> None:
    """Print the table."""
    console = Console(width=None if os.isatty(1) else 120)
    table = Table(title=f"{result.id}: {result.title}", title_justify="left")
    for number, column in enumerate(result.columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in result.rows:
        table.add_row(*row)
    console.print(table)
    for note in result.notes:
        console.print(note, highlight=False)


def write(result: Result) -> Path:
    """Keep the figures as results/<id>.json, in place of the last ones."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{result.id}.json"
    document = {
        "id": result.id,
        "title": result.title,
        "at": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "columns": list(result.columns),
        "rows": [list(row) for row in result.rows],
        "notes": result.notes,
        "figures": result.figures,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def machine() -> dict[str, Any]:
    """Where it ran, and with which versions."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "commit": _commit(),
        **{name.lower(): metadata.version(name) for name in PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()
