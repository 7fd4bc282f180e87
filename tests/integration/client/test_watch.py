"""`--watch` and `cellrun top`: redrawn on a terminal, printed at each change elsewhere."""

import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cellrun import Session
from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.models import Job
from tests.harness.terminal import RUN, read_until, terminal
from tests.integration.client.test_against_the_api import SPEC, call
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("command")]


@pytest.mark.parametrize(
    ("words", "column"),
    [
        (("jobs",), b"NAME"),
        (("ps", "--mine"), b"OWNER"),
        (("status", "sweep"), b"sweep"),
        (("job", "sweep"), b"main"),
        (("top",), b"cells: none"),
    ],
)
def test_a_terminal_is_redrawn_until_the_user_interrupts(
    session: Session, words: tuple[str, ...], column: bytes
) -> None:
    session.submit(SPEC)
    option = () if words == ("top",) else ("--watch",)
    with terminal(*words, *option) as (process, reader):
        assert b"Ctrl-C to end" in read_until(reader, column)
        session.submit({**SPEC, "name": "later"})
        if words[0] in ("jobs", "ps", "top"):
            read_until(reader, b"later")
        process.send_signal(signal.SIGINT)
        rest = read_until(reader, b"nothing ends like this")
        assert process.wait(timeout=20) == 0
    assert b"\x1b[?1049l" in rest  # the terminal has its earlier content again
    assert b"interrupted" not in rest


def test_a_pipe_gets_the_table_once_for_each_change(session: Session) -> None:
    session.submit(SPEC)
    with subprocess.Popen(
        [sys.executable, "-c", RUN, "status", "sweep", "--watch"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as process:
        assert process.stdout is not None
        assert "pending" in process.stdout.readline()
        Job.objects.update(is_held=True)  # no change of its line
        session.cancel_job(Job.objects.get().pk)
        assert "killed" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == ""
        assert process.wait(timeout=20) == 0


def test_an_error_that_lasts_ends_the_watch(command: CliRunner) -> None:
    refused = call(command, "status", "nothing-of-this-name", "--watch")
    assert refused.exit_code == 2
    assert "nothing-of-this-name" in refused.stderr


def test_documents_are_not_watched(command: CliRunner) -> None:
    refused = call(command, "jobs", "-w", "-o", "json")
    assert refused.exit_code == 2
    assert "events" in refused.stderr


def test_top_prints_once_where_no_terminal_is(command: CliRunner, session: Session) -> None:
    enroll_cell(name="cell-1", pool="default", now=clock.now())
    session.submit(SPEC)
    shown = call(command, "top")
    assert shown.exit_code == 0, shown.output
    for part in ("cells: 1 lost", "cell-1", "0 of 0", "sweep", "3 pending"):
        assert part in shown.stdout
    assert call(command, "top", "--pool", "other").stdout.count("cell-1") == 0
    found = call(command, "top", "-o", "jsonpath=.jobs[*].name")
    assert found.stdout == "sweep\n"
