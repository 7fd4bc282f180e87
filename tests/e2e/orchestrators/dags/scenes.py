"""DAGs whose processes are killed, or whose jobs fail, for Airflow of tests.harness.clients."""

import os
import signal
import threading
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, get_current_context
from cellrun_airflow import CellrunOperator

SMALL = {"cpu": 0.1, "memory": "16Mi"}


def kill_first_try() -> None:
    """Kill this process with -9, unless it is that of a later try."""
    if get_current_context()["ti"].try_number == 1:
        os.kill(os.getpid(), signal.SIGKILL)


class KilledBeforeDeferral(CellrunOperator):
    """The process of the first try is killed when the job is submitted, before the deferral."""

    def defer(self, **options: Any) -> None:
        kill_first_try()
        super().defer(**options)


class KilledAfterEnd(CellrunOperator):
    """The process of the first try is killed when the job has ended, before Airflow knows it."""

    def execute_complete(self, context: Any, event: Any) -> int:
        kill_first_try()
        return super().execute_complete(context, event)


class NeverDeferred(CellrunOperator):
    """The process stays between the submission and the deferral."""

    def defer(self, **options: Any) -> None:
        threading.Event().wait()


def scene(name: str, operator: type[CellrunOperator], script: str, **options: Any) -> None:
    """Define a DAG of one task, which runs a script."""
    with DAG(name, schedule=None):
        operator(
            task_id="task",
            job={"task_type": "process", "command": ["sh", "-c", script], "resources": SMALL},
            poll_seconds=0.2,
            retry_delay=timedelta(0),
            **options,
        )


scene("good", CellrunOperator, "echo in {{ run_id }}")
scene("early", KilledBeforeDeferral, "true", retries=1)
scene("late", KilledAfterEnd, "true", retries=1)
scene("bad", CellrunOperator, "echo no such table >&2; exit 7", retries=1)
scene("slow", CellrunOperator, "sleep 600")
scene("stuck", NeverDeferred, "sleep 600")
