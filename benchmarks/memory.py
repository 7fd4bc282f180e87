"""B11: the memory of each Python process after a hundred thousand tasks."""

import time
from collections.abc import Mapping

from benchmarks.description import Curve, Description, Figures, Options, Points, at_most
from benchmarks.report import Result, others_note
from benchmarks.stand import CONTROL, FLEET, Wanted, standing
from benchmarks.throughput import WARM_UP_TASKS, submit_and_wait
from benchmarks.usage import Others, resident_mib

CELLS = 100
TASKS_PER_ROUND = 10_000
ROUNDS = 10
REST_SECONDS = 2.0
PROCESSES = (*CONTROL, FLEET)


def _growth(figures: Figures) -> float:
    return max(samples[-1][1] / samples[0][1] for samples in figures["mib"].values())


def _lines(figures: Figures) -> Mapping[str, Points]:
    return dict(figures["mib"])


ABOUT = Description(
    id="B11",
    title="memory after many tasks",
    claim="The memory of no process grows with the work that is done.",
    workload=f"{ROUNDS} jobs of {TASKS_PER_ROUND:,} no-op tasks on {CELLS} cells in one fleet"
    " process, one after the other. The short size has half the jobs.",
    peer="None.",
    method="Resident memory of each Python process, read 2 s after the end of each job. Growth is"
    " the ratio after the last job and the first, of the process with the largest one. Always one"
    " run.",
    budget_seconds=70,
    targets=(at_most(1.1, "growth from 10,000 to 100,000 tasks", _growth),),
    curves=(Curve("memory", "tasks", "MiB", _lines),),
)


def run(options: Options) -> Result:
    """Run the jobs in one go, and read the memory after each."""
    tasks = options.pick(tiny=100, short=TASKS_PER_ROUND, full=TASKS_PER_ROUND)
    rounds = options.pick(tiny=2, short=ROUNDS // 2, full=ROUNDS)
    title = f"memory after up to {rounds * tasks:,} tasks"
    columns = ("", f"{tasks:,} tasks, MiB", f"{rounds * tasks:,} tasks, MiB", "ratio")
    result = Result("B11", title, columns)
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in PROCESSES}
    with standing(Wanted(cells=CELLS)) as stand, stand.connect() as connection:
        submit_and_wait(stand, connection, [min(WARM_UP_TASKS, tasks)])
        others = Others(stand.pids)
        for number in range(1, rounds + 1):
            submit_and_wait(stand, connection, [tasks])
            time.sleep(REST_SECONDS)
            for name in PROCESSES:
                found[name].append((number * tasks, resident_mib(stand.pids[name])))
        busy = others.cores()
    for name, samples in found.items():
        (_, first), (_, last) = samples[0], samples[-1]
        result.rows.append((name, f"{first:.1f}", f"{last:.1f}", f"{last / first:.2f}"))
    result.notes.append(others_note([busy]))
    result.figures = {"mib": found, "cores_used_by_others": busy}
    return result
