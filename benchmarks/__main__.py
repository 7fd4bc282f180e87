"""`python -m benchmarks [--only B1,CANCEL] [--size full]`: print tables and store the figures."""

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from benchmarks.description import Options, Size, Skipped
from benchmarks.registry import ALL, Benchmark
from benchmarks.report import RESULTS, judge, make_console, show, stored, write

FULL_RUNS = 3
Row = tuple[str, str, str, str, str]


class OverBudget(Exception):
    """A benchmark took longer than its budget."""


def main() -> int:
    """Run the requested benchmarks in order; return 1 if one failed, after the others."""
    chosen = _parse()
    names = [name.strip().upper() for name in chosen.only.split(",") if name.strip()]
    size = Size(chosen.size)
    options = Options(chosen.runs or (FULL_RUNS if size is Size.FULL else 1), size)
    summary: list[Row] = []
    failed = []
    unused = 0.0
    for name in names:
        benchmark = ALL[name]
        # What one leaves of its budget is added to the next one's: the sum is the limit of all.
        budget = unused + benchmark.about.budget_seconds
        if size is Size.FULL or chosen.budget is not None:
            budget = chosen.budget or 0
        began = time.monotonic()
        try:
            with _limit(budget):
                summary += _run(benchmark, options, chosen.results)
        except Skipped as reason:
            summary.append((name, "SKIPPED", str(reason), "", ""))
        except Exception as error:  # whatever one does, the others are run
            print(f"{name} failed:", file=sys.stderr, flush=True)
            traceback.print_exc()
            failed.append(name)
            summary.append((name, "FAILED", _reason(error), "", ""))
        unused = max(budget - (time.monotonic() - began), 0.0)
    _show_summary(summary)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default=",".join(ALL), help=f"some of {', '.join(ALL)}")
    parser.add_argument("--runs", type=int, help="medians are taken of so many (1; full size: 3)")
    parser.add_argument(
        "--size", choices=[*map(str, Size)], default="short", help="amount of work (short)"
    )
    parser.add_argument(
        "--budget", type=int, help="seconds for each; 0: no limit (that of each; full size: 0)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the figures")
    chosen = parser.parse_args()
    for name in chosen.only.split(","):
        if name.strip() and name.strip().upper() not in ALL:
            parser.error(f"there is no benchmark {name.strip()}: {', '.join(ALL)}")
    if chosen.runs is not None and chosen.runs < 1:
        parser.error("--runs is at least 1")
    if chosen.budget is not None and chosen.budget < 0:
        parser.error("--budget is at least 0")
    return chosen


def _run(benchmark: Benchmark, options: Options, folder: Path) -> list[Row]:
    """Run one, print and store its figures; return its rows of the summary."""
    about = benchmark.about
    result = benchmark.run(options)
    show(result, about)
    print(f"figures: {write(result, options.size, folder)}\n", flush=True)
    rows = judge(about, stored(result.figures))
    return [(about.id, *row) for row in rows] or [(about.id, "ran", "", "", "no target")]


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise OverBudget in the block after so many seconds; 0: never."""

    def stop(*_: object) -> None:
        raise OverBudget(f"took longer than its budget of {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _show_summary(rows: list[Row]) -> None:
    table = Table(title="Summary", title_justify="left")
    for column in ("", "figure", "target", "measured", ""):
        table.add_column(column)
    for row in rows:
        table.add_row(*map(escape, row))
    make_console().print(table)


if __name__ == "__main__":
    sys.exit(main())
