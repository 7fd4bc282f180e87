"""docs/scenarios.md: what each row obliges to, what shows it, and which mistakes that finds."""

import ast
from dataclasses import dataclass
from pathlib import Path

from docgen.tables import table
from tests.mutations.row_mutation import RowMutation
from tests.mutations.rows import ROWS as MISTAKES

SCENARIOS = Path(__file__).resolve().parents[1] / "tests" / "scenarios"


@dataclass(frozen=True, slots=True)
class Row:
    """A promise, the file of its scenarios, and the system that it comes from, if from one."""

    name: str
    file: str
    source: str
    obliges: str


ROWS = (
    Row(
        "S0.1",
        "test_s0_1_states.py",
        "Iris",
        "ten task states with their numbers; which are final, and who sets which",
    ),
    Row(
        "S0.2",
        "test_s0_2_expansion.py",
        "Iris",
        "a job expands into `replicas` tasks, placed, retried and tracked independently",
    ),
    Row(
        "S0.3",
        "test_s0_3_budgets.py",
        "Iris",
        "budgets: failure (default 0) and preemption (default 100), and system (Flyte, 3); the"
        " counter at most the limit: tried again, else terminal",
    ),
    Row(
        "S0.4",
        "test_s0_4_job_failures.py",
        "Iris",
        "only FAILED tasks count toward `max_task_failures`; losses and preemptions never do",
    ),
    Row(
        "S0.5",
        "test_s0_5_kills.py",
        "Iris",
        "KILLED by cancel, by the job's end, by a timeout, by the parent's end (recursive, not on"
        " SUCCEEDED), by a dependency, by a replacement",
    ),
    Row(
        "S0.6",
        "test_s0_6_losses.py",
        "Iris",
        "a cell's death reaches its tasks; the siblings of a gang's member that failed for good"
        " end WORKER_FAILED",
    ),
    Row(
        "S0.6",
        "test_s0_6_mass_loss.py",
        "own",
        "most of a pool silent at once is not given up without an operator's word or a lease more;"
        " neither a stall or deafness of our own nor a jump of the clock loses a cell; who returns"
        " is judged by what it has",
    ),
    Row(
        "S0.7",
        "test_s0_7_preemption.py",
        "Iris",
        "more important bands preempt less important ones: while ASSIGNED free, while BUILDING or"
        " RUNNING from the preemption budget; PREEMPTED when that is exhausted",
    ),
    Row(
        "S0.8",
        "test_s0_8_deadlines.py",
        "Iris",
        "a scheduling timeout makes the task UNSCHEDULABLE, the job too, and kills the rest",
    ),
    Row(
        "S0.9",
        "test_s0_9_reports.py",
        "Iris",
        "a report of PENDING never takes an ASSIGNED task back; late and doubled reports change"
        " nothing",
    ),
    Row(
        "S0.10",
        "test_s0_10_job_states.py",
        "Iris",
        "a job's state is derived from its tasks' states in the order of precedence",
    ),
    Row(
        "S0.11",
        "test_s0_11_display.py",
        "Iris",
        "names and colours of the states in the admin and the command, the attempts of each task,"
        ' "(worker failure)" beside them, the pending reason below a waiting task',
    ),
    Row(
        "S1.1",
        "test_s1_1_runners.py",
        "Flyte",
        "a reconciler for each task type: a registry of runners, the phase that a runner reports,"
        " its state kept from look to look, Abort",
    ),
    Row(
        "S1.2",
        "test_s1_2_history.py",
        "Flyte",
        "the history of phases is only added to: the whole timeline of an execution",
    ),
    Row(
        "S1.3",
        "test_s1_3_files.py",
        "Flyte",
        "inputs, outputs below sharded paths of each attempt's own (two base-36 digits),"
        " checkpoints, secrets, named limited tokens",
    ),
    Row(
        "S1.6",
        "test_s1_6_system_failures.py",
        "Flyte",
        "consecutive failures of the system (3) apart from the user's retries, which are new"
        " attempts of the same task",
    ),
    Row(
        "S1.7",
        "test_s1_7_retention.py",
        "Flyte",
        "what has ended is deleted when it was kept for its time (7 days by default), with all that"
        " it left",
    ),
    Row(
        "S2.1",
        "test_s2_1_one_off_tasks.py",
        "Diego",
        "one-off tasks: guid, domain, definition; PENDING, RUNNING, COMPLETED, RESOLVING as Diego's"
        " clients see them",
    ),
    Row(
        "S2.2",
        "test_s2_2_at_most_once.py",
        "Diego",
        "at most once, where the submitter asks for it",
    ),
    Row(
        "S2.3",
        "test_s2_3_resolving.py",
        "Diego",
        "poll, resolve, delete: RESOLVING is a claim that two clients cannot both win",
    ),
    Row(
        "S2.4",
        "test_s2_4_two_minutes.py",
        "Diego",
        "completed one-off tasks that nobody resolves are deleted after two minutes",
    ),
    Row(
        "S2.5",
        "test_s2_5_answers.py",
        "Diego",
        'failed, failure_reason ("exit status 1"), result: the first 10 KB of the result file;'
        " annotation, cell_id, instants in nanoseconds",
    ),
    Row(
        "S3.1",
        "test_s3_1_pools.py",
        "Backend.AI",
        "a handler for each state (SCHEDULED is ASSIGNED; PREPARING and PULLING are phases of"
        " BUILDING; TERMINATING is ended and not released, TERMINATED released), and a policy for"
        " each pool",
    ),
    Row(
        "S3.2",
        "test_s3_2_plugins.py",
        "Backend.AI",
        "plugins: validators (quotas, concurrency, dependencies), sequencers (FIFO, LIFO, DRF),"
        " selectors (concentrated, dispersed, round-robin), hooks",
    ),
    Row(
        "S3.3",
        "test_s3_3_allocation.py",
        "Backend.AI",
        "atomic allocation: no cell, quota or token is given beyond what there is, whoever races",
    ),
    Row(
        "S3.4",
        "test_s3_4_preparation.py",
        "Backend.AI",
        "pulls and creations are tracked; what fails is tried three times in its stage, then on"
        " another cell; what hangs is found; what cannot succeed is not tried again",
    ),
    Row(
        "S3.5",
        "test_s3_5_termination.py",
        "Backend.AI",
        "termination: marked, SIGTERM, grace, SIGKILL (at once when forced), a confirmed exit; only"
        " then is capacity released; a stop that fails holds up no other",
    ),
    Row(
        "S3.6",
        "test_s3_6_pending.py",
        "Backend.AI",
        "a pending timeout for each pool; old work swept away; every stuck case told by history",
    ),
    Row(
        "S3.7",
        "test_s3_7_cluster_sessions.py",
        "Backend.AI",
        "sessions of several containers: who is in the gang, an SSH key pair and a private network"
        " for each",
    ),
    Row(
        "S4.1",
        "test_s4_1_minima.py",
        "Volcano",
        "groups with `min_available` each, and for the job; checked at submission; by default all"
        " replicas",
    ),
    Row(
        "S4.2",
        "test_s4_2_gangs.py",
        "Volcano",
        "gangs: nothing starts unless the minimum of every group fits",
    ),
    Row(
        "S4.3",
        "test_s4_3_final_status.py",
        "Volcano",
        "how a job ends follows from the successes per group and of all, against the minima",
    ),
    Row("S4.4", "test_s4_4_counts.py", "Volcano", "status counts per group and state"),
    Row(
        "Submission",
        "test_submission.py",
        "",
        "whole or not at all, once for a guid, names by policy, deletion",
    ),
    Row(
        "Dependencies",
        "test_dependencies.py",
        "",
        "of jobs and of groups, until started, succeeded or finished",
    ),
)
"""In order. S0 to S4 are the systems whose behaviour Cellrun promises, numbered as it met them."""


def write() -> str:
    """The whole page."""
    return "\n\n".join([*_head(), *(part for row in ROWS for part in _section(row))]) + "\n"


def list_scenarios(row: Row) -> list[str]:
    """The names of the row's tests, in the order of the file."""
    tree = ast.parse((SCENARIOS / row.file).read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def _head() -> list[str]:
    rows = [
        (
            f"[{row.name}](#{_anchor(row)})",
            row.source,
            row.obliges,
            str(len(list_scenarios(row))),
            str(len(_mistakes(row))),
        )
        for row in ROWS
    ]
    return [
        "# Scenarios",
        "<!-- Written by `make docs` from tests/scenarios and tests/mutations; do not edit. -->",
        "What Cellrun promises about states, row by row: where a rule comes from, what it obliges"
        " to, and the scenarios\nthat show it on a real PostgreSQL; where a row is about what runs"
        " on a cell, on a cell with real containers or\nprocesses. Each row also lists mistakes of"
        " one line, each of which makes the scenario named beside it fail:\n`python -m"
        " tests.mutations --rows` plants them all, the suite some of them in each run.",
        table(("row", "from", "obliges to", "scenarios", "mistakes"), rows),
    ]


def _section(row: Row) -> list[str]:
    scenarios = [f"* {_sentence(name)}" for name in list_scenarios(row)]
    mistakes = [
        (f"`{item.name}`", item.breaks, f"`{item.file}`", _sentence(item.test.split("::")[1]))
        for item in _mistakes(row)
    ]
    whose = f" ({row.source})" if row.source else ""
    return [
        f"## {row.name}",
        f"{row.obliges[0].upper()}{row.obliges[1:]}{whose}:"
        f" [{row.file}](../tests/scenarios/{row.file}).",
        "\n".join(scenarios),
        table(("mistake", "what it breaks", "in", "found by"), mistakes),
    ]


def _mistakes(row: Row) -> list[RowMutation]:
    return [item for item in MISTAKES if item.row == row.name]


def _sentence(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def _anchor(row: Row) -> str:
    return row.name.lower().replace(".", "")
