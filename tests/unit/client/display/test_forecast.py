"""What `cellrun submit --dry-run` prints."""

import io
import json
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cellrun.cli import app
from cellrun.display.forecast import forecast
from tests.unit.client.stub_server import Api

WAITS = {"code": "quota_exceeded", "text": "quota of user ann: 1 core used"}


def a_group(**more: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {"cells": {}, "waiting": 0, "reason": None, "also": [], "kept": {}}
    return {"name": "main", "is_refused": False, **nothing, **more}


def a_dry_run(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {"existing_job": None, "evicts": [], "is_complete": True}
    return {"pool": "default", "groups": list(groups), **nothing, **more}


def drawn(document: dict[str, Any]) -> list[str]:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(forecast(document))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


TWICE = [{"cpu": 0.5, "memory_mib": 1024}, {"cpu": 0.5, "memory_mib": 2048}]
TOO_MUCH = "increases memory to 4Gi, and no cell of pool default has it"


@pytest.mark.parametrize(
    ("document", "lines"),
    [
        (
            a_dry_run(
                growth=[
                    {"group": "main", "rule": 1, "requests": TWICE, "refusal": TOO_MUCH},
                    {"group": "main", "rule": 2, "requests": TWICE[:1], "refusal": ""},
                    {"group": "main", "rule": 3, "requests": [], "refusal": TOO_MUCH},
                ]
            ),
            [
                "main: rule 1 of on_exit would retry with cpu 0.5, memory_mib 1024; cpu 0.5,"
                f" memory_mib 2048, then fail: it {TOO_MUCH}",
                "main: rule 2 of on_exit would retry with cpu 0.5, memory_mib 1024",
                f"main: rule 3 of on_exit would not retry: it {TOO_MUCH}",
            ],
        ),
        (
            a_dry_run(a_group(cells={"cell-1": 2, "cell-2": 1})),
            ["main: 3 of 3 tasks would be placed now: 2 on cell-1, 1 on cell-2"],
        ),
        (
            a_dry_run(a_group(cells={"cell-1": 1}, waiting=2, reason=WAITS, also=[WAITS])),
            [
                "main: 1 of 3 tasks would be placed now: 1 on cell-1",
                "main: 2 tasks would wait: quota of user ann: 1 core used",
                "  also: quota of user ann: 1 core used",
            ],
        ),
        (
            a_dry_run(a_group(waiting=2, reason=WAITS, is_refused=True), is_complete=False),
            [
                "main: 2 tasks would end unschedulable: quota of user ann: 1 core used",
                "incomplete: more tasks wait before this job than were considered",
            ],
        ),
        (
            a_dry_run(
                a_group(waiting=1, reason=WAITS, kept={"cell-1": 1}),
                evicts=[{"task": 7, "name": "main.0", "job": 3, "cell": "cell-1"}],
            ),
            [
                "main: 1 task would wait: quota of user ann: 1 core used",
                "  evictions would make room for: 1 on cell-1",
                "would evict main.0 (task 7) of job 3 on cell-1",
            ],
        ),
        (a_dry_run(existing_job=5), ["job 5 has the same guid and document: it would be returned"]),
    ],
)
def test_dry_run_output_has_lines_for_each_group(
    document: dict[str, Any], lines: list[str]
) -> None:
    assert drawn(document) == lines


def test_dry_run_is_requested_and_printed(environment: Api) -> None:
    document = a_dry_run(a_group(cells={"cell-1": 1}))
    environment.answer("POST /api/v1/jobs:dry-run", document)
    words, typed = ["submit", "-", "--dry-run"], '{"name": "a", "image": "busybox"}'
    result = CliRunner().invoke(app, words, input=typed)
    assert (result.exit_code, result.stdout.strip()) == (
        0,
        "main: 1 of 1 task would be placed now: 1 on cell-1",
    )
    result = CliRunner().invoke(app, [*words, "-o", "json"], input=typed)
    assert json.loads(result.stdout) == document


def test_dry_run_with_wait_is_refused(environment: Api) -> None:
    result = CliRunner().invoke(app, ["submit", "-", "--dry-run", "--wait"], input='{"name": "a"}')
    assert result.exit_code == 2
    assert "--dry-run submits nothing" in result.stderr
