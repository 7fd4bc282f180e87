"""Generate docs/scenarios.md: each promise, its source and its test file."""

import ast
from dataclasses import dataclass
from pathlib import Path

from docgen.tables import table

SCENARIOS = Path(__file__).resolve().parents[1] / "tests" / "scenarios"


@dataclass(frozen=True, slots=True)
class Row:
    """A promise, the file of its scenarios, and the system it is taken from, if any."""

    name: str
    file: str
    source: str
    obliges: str


ROWS = (
    Row(
        "S0.1",
        "test_s0_1_states.py",
        "Iris",
        "ten task states with their numbers, which of them are terminal, and which component "
        "sets each",
    ),
    Row(
        "S0.2",
        "test_s0_2_expansion.py",
        "Iris",
        "a job expands into `replicas` tasks, which are placed, retried and tracked independently",
    ),
    Row(
        "S0.3",
        "test_s0_3_budgets.py",
        "Iris",
        "budgets: failure (default 0), preemption (default 100) and system (Flyte, 3); a task "
        "is retried while the counter does not exceed the limit",
    ),
    Row(
        "S0.3",
        "test_s0_3_retry_rules.py",
        "AWS Batch, Kubernetes",
        "retry rules of a group: the first that matches exit status and reason of a failure "
        "retries the task within the budgets, or fails it; no rule applies to lost cells",
    ),
    Row(
        "S0.4",
        "test_s0_4_job_failures.py",
        "Iris",
        "only FAILED tasks count toward `max_task_failures`; losses and preemptions do not",
    ),
    Row(
        "S0.5",
        "test_s0_5_kills.py",
        "Iris",
        "a task is KILLED by a cancel, the end of its job, a timeout, the end of the parent job "
        "(recursively, but not on SUCCEEDED), a dependency or a replacement",
    ),
    Row(
        "S0.6",
        "test_s0_6_losses.py",
        "Iris",
        "the loss of a cell ends its attempts; when a member of a gang fails finally, the other "
        "members end WORKER_FAILED",
    ),
    Row(
        "S0.6",
        "test_s0_6_mass_loss.py",
        "Cellrun",
        "when most of a pool is silent at once, its cells are lost only after confirmation by "
        "an operator or one more lease; no cell is lost by a stall of the control plane or a "
        "clock jump; a returning cell is quarantined if it has attempts that it must not have",
    ),
    Row(
        "S0.7",
        "test_s0_7_preemption.py",
        "Iris",
        "higher bands preempt lower ones: free while ASSIGNED, from the preemption budget while "
        "BUILDING or RUNNING; PREEMPTED when the budget is exhausted",
    ),
    Row(
        "S0.8",
        "test_s0_8_deadlines.py",
        "Iris",
        "a scheduling timeout makes the task and its job UNSCHEDULABLE and kills the other tasks",
    ),
    Row(
        "S0.9",
        "test_s0_9_reports.py",
        "Iris",
        "a report of PENDING does not change an ASSIGNED task; late and duplicate reports "
        "change nothing",
    ),
    Row(
        "S0.10",
        "test_s0_10_job_states.py",
        "Iris",
        "the state of a job follows from the states of its tasks in the order of precedence",
    ),
    Row(
        "S0.11",
        "test_s0_11_display.py",
        "Iris",
        'admin and command show names and colours of states, attempts of each task, "(worker '
        'failure)" and the pending reason',
    ),
    Row(
        "S1.1",
        "test_s1_1_runners.py",
        "Flyte",
        "a reconciler for each task type: a registry of runners, reported phases, state kept "
        "between calls, Abort",
    ),
    Row(
        "S1.2",
        "test_s1_2_history.py",
        "Flyte",
        "the history of phases is append-only and gives the whole timeline of an execution",
    ),
    Row(
        "S1.3",
        "test_s1_3_files.py",
        "Flyte",
        "inputs, outputs below sharded paths of each attempt (two base-36 digits), checkpoints, "
        "secrets, named limited tokens",
    ),
    Row(
        "S1.4",
        "test_s1_4_cache.py",
        "Flyte",
        "a cache that is searched before a task runs: a hit ends the task SUCCEEDED with the "
        "cached result and outputs; both are stored after success",
    ),
    Row(
        "S1.5",
        "test_s1_5_reservations.py",
        "Flyte",
        "of identical tasks one runs, the others wait for its result; when it ends without one, "
        "the next one runs",
    ),
    Row(
        "S1.6",
        "test_s1_6_system_failures.py",
        "Flyte",
        "consecutive system failures (at most 3) are counted apart from failures of the task; a "
        "retry is a new attempt of the same task",
    ),
    Row(
        "S1.7",
        "test_s1_7_retention.py",
        "Flyte",
        "finished work is deleted with all its files after its retention time (7 days by default)",
    ),
    Row(
        "S2.1",
        "test_s2_1_one_off_tasks.py",
        "Diego",
        "one-off tasks: guid, domain, definition; lifecycle PENDING, RUNNING, COMPLETED, "
        "RESOLVING as in Diego",
    ),
    Row(
        "S2.2",
        "test_s2_2_at_most_once.py",
        "Diego",
        "at-most-once execution on request",
    ),
    Row(
        "S2.3",
        "test_s2_3_resolving.py",
        "Diego",
        "poll, resolve, delete: RESOLVING is an exclusive claim",
    ),
    Row(
        "S2.4",
        "test_s2_4_two_minutes.py",
        "Diego",
        "completed one-off tasks that no client resolves are deleted after two minutes",
    ),
    Row(
        "S2.5",
        "test_s2_5_answers.py",
        "Diego",
        '`failed`, `failure_reason` ("exit status 1"), `result` (the first 10 KB of the result '
        "file), annotation, `cell_id`, times in nanoseconds",
    ),
    Row(
        "S3.1",
        "test_s3_1_pools.py",
        "Backend.AI",
        "a handler for each state (SCHEDULED is ASSIGNED; PREPARING and PULLING are phases of "
        "BUILDING; TERMINATING is ended and not released, TERMINATED is released), and a policy "
        "for each pool",
    ),
    Row(
        "S3.2",
        "test_s3_2_plugins.py",
        "Backend.AI",
        "plugins: validators (quotas, concurrency, dependencies), sequencers (FIFO, LIFO, DRF), "
        "selectors (concentrated, dispersed, round-robin), hooks",
    ),
    Row(
        "S3.3",
        "test_s3_3_allocation.py",
        "Backend.AI",
        "atomic allocation: concurrent requests never exceed a cell, quota or token limit",
    ),
    Row(
        "S3.3",
        "test_s3_3_concurrency_keys.py",
        "Hatchet, Temporal",
        "concurrency keys: tasks with a key wait while its limit or its rate is used up, and a key "
        "is free again after every kind of end",
    ),
    Row(
        "S3.4",
        "test_s3_4_preparation.py",
        "Backend.AI",
        "pulls and creations are tracked; a failed stage is retried three times, then on "
        "another cell; stuck stages are detected; permanent errors are not retried",
    ),
    Row(
        "S3.5",
        "test_s3_5_termination.py",
        "Backend.AI",
        "termination: mark, SIGTERM, grace period, SIGKILL (at once when forced), confirmed "
        "exit, release of capacity; a failed stop does not block others",
    ),
    Row(
        "S3.6",
        "test_s3_6_pending.py",
        "Backend.AI",
        "a pending timeout for each pool, cleanup of old work, a history entry for every stuck "
        "case",
    ),
    Row(
        "S3.7",
        "test_s3_7_cluster_sessions.py",
        "Backend.AI",
        "sessions of several containers: members, an SSH key pair and a private network for "
        "each gang",
    ),
    Row(
        "S4.1",
        "test_s4_1_minima.py",
        "Volcano",
        "`min_available` for groups and the job, checked at submission; the default is all "
        "replicas",
    ),
    Row(
        "S4.2",
        "test_s4_2_gangs.py",
        "Volcano",
        "gangs: no task starts unless the minimum of every group fits",
    ),
    Row(
        "S4.3",
        "test_s4_3_final_status.py",
        "Volcano",
        "the final state of a job follows from successes per group and in total, compared with "
        "the minima",
    ),
    Row(
        "S4.4",
        "test_s4_4_counts.py",
        "Volcano",
        "status counts per group and state",
    ),
    Row(
        "Submission",
        "test_submission.py",
        "",
        "submission is atomic, idempotent by guid and follows the name policy; deletion",
    ),
    Row(
        "Dependencies",
        "test_dependencies.py",
        "",
        "dependencies between jobs and between groups: until started, succeeded or finished",
    ),
    Row(
        "Schedules",
        "test_schedules.py",
        "",
        "a schedule submits one job at each instant of its calendar; rules decide on overlapping, "
        "missed and refused instants",
    ),
)
"""In order. S0 to S4 are the systems whose behaviour Cellrun reproduces."""


def write() -> str:
    """Return the whole page."""
    rows = (
        (
            f"[{row.name}](../tests/scenarios/{row.file})",
            row.source,
            row.obliges,
            str(len(list_scenarios(row))),
        )
        for row in ROWS
    )
    return (
        "\n\n".join(
            [
                "# Scenarios",
                "<!-- Written by `make docs` from tests/scenarios; do not edit. -->",
                "This page lists what Cellrun promises about states. *Source* is the system whose"
                " rule Cellrun follows: Iris, Flyte,\nDiego (Cloud Foundry), Backend.AI or Volcano"
                " (Kubernetes). Each row links to its test file; the name of a test\nstates the"
                " situation and the outcome. The tests run on a real PostgreSQL, those about a"
                " cell's work on a cell with\nreal containers or processes.",
                table(("row", "source", "promise", "scenarios"), rows),
            ]
        )
        + "\n"
    )


def list_scenarios(row: Row) -> list[str]:
    """Return the names of the row's tests in the order of the file."""
    tree = ast.parse((SCENARIOS / row.file).read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
