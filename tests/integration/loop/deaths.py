"""Processes of the control plane that die in the middle of their work, at a chosen statement.

The process is a real one, a fork with a database connection of its own, and it ends as `kill -9`
ends it: nothing is rolled back, closed or sent by us. What it had sent before is not lost with it.
"""

import json
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection

from controlplane.outbox import transport
from tests.integration.loop.conftest import Wire

Doom = Callable[[str], bool]
"""Called before each statement: whether the process dies now."""

DIED, FAILED = 9, 1
# A process that hangs is ended by the system, and the test with it.
PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class Death:
    """How it went. `before`: the statement that was never run; None: the work was done."""

    before: str | None
    sent: list[tuple[str, str]]


class PipedWire(Wire):
    """A wire that passes messages on at once, so that a later death loses none of them."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self._pipe = pipe

    def push(self, messages: Sequence[tuple[str, str]]) -> None:
        write_record(self._pipe, {"sent": [list(message) for message in messages]})


def at_statement(number: int, containing: str = "") -> Doom:
    """The statement of that number, counted from 0, among those with `containing` in them."""
    left = number

    def is_it(sql: str) -> bool:
        nonlocal left
        left -= containing in sql
        return left < 0

    return is_it


def write_record(pipe: int, what: dict[str, Any]) -> None:
    line = json.dumps(what).encode() + b"\n"
    while line:
        line = line[os.write(pipe, line) :]


def work_until_death(work: Callable[[], object], is_last: Doom) -> Death:
    """Do `work` in a process that dies before a statement of which `is_last`, or after all."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # A fork beside the threads of the test runner: it uses nothing of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(reading)
        _live(work, is_last, writing)
    os.close(writing)
    with os.fdopen(reading) as lines:
        records = [json.loads(line) for line in lines]
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, DIED), "the work failed, see above"
    sent = [(queue, message) for item in records for queue, message in item.get("sent", ())]
    [before] = [item["before"] for item in records if "before" in item] or [None]
    assert (before is None) == (status == 0)
    return Death(before, sent)


def _live(work: Callable[[], object], is_last: Doom, pipe: int) -> None:
    """The life of the process, which never returns."""
    code = FAILED

    def watch(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if is_last(sql):
            write_record(pipe, {"before": " ".join(sql.split())[:80]})
            os._exit(DIED)
        return execute(sql, *rest)

    try:
        signal.alarm(PATIENCE_SECONDS)
        # Kept, since to collect it would end the parent's session with PostgreSQL.
        inherited, connection.connection = connection.connection, None
        transport.use(PipedWire(pipe))
        with connection.execute_wrapper(watch):
            work()
        code = 0 if inherited is not connection.connection else FAILED
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
