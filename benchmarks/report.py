"""Print results as tables, and store them as JSON with machine, versions and commit."""

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

from benchmarks.description import Description, Figures, Size, Verdict

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


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of the sorted values do not pass."""
    return values[max(-(-int(share * 1000) * len(values) // 1000) - 1, 0)]


def others_note(cores: Iterable[float]) -> str:
    """Return the load of other processes: a busy machine makes the figures unreliable."""
    return f"Meanwhile other programs used {median(cores):.1f} of {os.cpu_count()} cores."


def show(result: Result, description: Description) -> None:
    """Print the table, the notes and the targets."""
    console = make_console()
    table = Table(title=f"{result.id}: {result.title}", title_justify="left")
    for number, column in enumerate(result.columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in result.rows:
        table.add_row(*row)
    console.print(table)
    for note in result.notes:
        console.print(note, highlight=False)
    for name, wanted, measured, verdict in judge(description, stored(result.figures)):
        console.print(f"Target: {name} {wanted}: {measured}, {verdict}.", highlight=False)


def make_console() -> Console:
    """Return a console of the width of the terminal; of 120 characters if there is none."""
    return Console(width=None if os.isatty(1) else 120)


def stored(figures: dict[str, Any]) -> Figures:
    """Return the figures as JSON has them."""
    found: Figures = json.loads(json.dumps(figures))
    return found


def judge(description: Description, figures: Figures) -> list[tuple[str, str, str, Verdict]]:
    """Return name, bound, value and verdict of each target."""
    rows = []
    for target in description.targets:
        value, verdict = target.measure(figures), target.judge(figures)
        measured = "-" if value is None else target.format(value)
        rows.append((target.name, target.wanted, measured, verdict))
    return rows


def write(result: Result, size: Size, folder: Path = RESULTS) -> Path:
    """Store the figures as <id>.json in the folder, in place of the last ones."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.id}.json"
    document = {
        "id": result.id,
        "title": result.title,
        "at": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "size": size.value,
        "machine": machine(),
        "columns": list(result.columns),
        "rows": [list(row) for row in result.rows],
        "notes": result.notes,
        "figures": result.figures,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def machine() -> dict[str, Any]:
    """Return the machine and the versions."""
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
