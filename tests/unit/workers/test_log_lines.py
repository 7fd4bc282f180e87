"""A cell's log lines: the control plane's form, an event's name, and the ids that it belongs to."""

import ast
import json
import logging
import re
import subprocess
import sys

import structlog

from controlplane.config.logs import build_logging as build_control_logging
from tests.architecture.source import ROOT, sources
from workers.logs import build_logging

LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
WRITE_LINES = """
import logging, sys
import structlog
from workers.logs import configure_logging

configure_logging("INFO", process="cell@a", cell=sys.argv[1] or None)
logging.getLogger().setLevel("ERROR")  # as Celery does, when its worker starts
log = structlog.get_logger("workers.attempt")
log.debug("not_written")
log.info("output_not_read", job=1, task=2, attempt="u-1", error="no")
log.bind(cell="b").info("cell_registered")
logging.getLogger("kombu").error("it is %s", "gone")
"""


def write_lines(cell: str) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-c", WRITE_LINES, cell],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_log_line_carries_event_ids_and_process() -> None:
    event, of_another_cell, of_a_library = write_lines("a")
    assert event.pop("timestamp")
    assert event == {
        "event": "output_not_read",
        "cell": "a",
        "job": 1,
        "task": 2,
        "attempt": "u-1",
        "error": "no",
        "level": "info",
        "logger": "workers.attempt",
        "process": "cell@a",
    }
    assert of_another_cell["cell"] == "b"
    assert (of_a_library["event"], of_a_library["cell"]) == ("it is gone", "a")


def test_process_of_several_cells_adds_no_cell_name_to_log_lines() -> None:
    event, of_a_cell, _ = write_lines("")
    assert "cell" not in event
    assert of_a_cell["cell"] == "b"


def test_cell_and_control_plane_log_in_the_same_format() -> None:
    ours = build_logging("INFO", process="p", cell=None)["formatters"]["json"]
    theirs = build_control_logging("INFO", "p")["formatters"]["json"]
    record = logging.LogRecord("a.b", logging.WARNING, "a.py", 1, "it is %s", ("so",), None)
    ours_line, theirs_line = (
        json.loads(
            structlog.stdlib.ProcessorFormatter(
                processors=form["processors"], foreign_pre_chain=form["foreign_pre_chain"]
            ).format(record)
        )
        for form in (ours, theirs)
    )
    assert ours_line.pop("timestamp") <= theirs_line.pop("timestamp")
    assert ours_line == theirs_line


def test_log_events_of_workers_are_snake_case_names() -> None:
    named = re.compile(r"[a-z]+(_[a-z]+)*")
    wrong = [
        f"{source.path}:{call.lineno}"
        for source in sources()
        if source.path.startswith("workers/")
        for call in ast.walk(source.tree)
        if isinstance(call, ast.Call) and is_logging(call.func)
        for event in events_of(call.args[0])
        if len(call.args) != 1 or not named.fullmatch(event)
    ]
    assert wrong == []


def is_logging(function: ast.expr) -> bool:
    """Whether `function` is a method of a logger, as `log.info` and `attempt.log.info` are."""
    if not isinstance(function, ast.Attribute) or function.attr not in LEVELS:
        return False
    owner = function.value
    name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
    return name in ("log", "_log")


def events_of(event: ast.expr) -> list[str]:
    if isinstance(event, ast.IfExp):
        return [*events_of(event.body), *events_of(event.orelse)]
    return [event.value if isinstance(event, ast.Constant) and isinstance(event.value, str) else ""]
