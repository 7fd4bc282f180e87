"""Flows that succeed, fail and wait.

As a program, it creates a work pool, deploys them to it, and prints the ids as JSON.

The Python of tests.harness.clients runs this file.
"""

import json
import sys
import threading
from pathlib import Path
from typing import Any

from prefect import flow, get_client
from prefect.client.schemas.actions import WorkPoolCreate

FAR = {"start_after": "2100-01-01T00:00:00Z"}
SMALL = {"resources": {"cpu": 0.1, "memory": "2Gi"}}

SECRET = {"secrets": [{"name": "prefect-level", "env": "PREFECT_LOGGING_LEVEL"}]}


@flow
def good() -> None:
    """Do nothing."""


@flow
def bad() -> None:
    """Fail with a reason."""
    raise LookupError("no such table")


@flow
def endless() -> None:
    """Run until it is stopped."""
    threading.Event().wait()


def main() -> None:
    """Create the pool, and deploy each flow to it; `never` is a job that does not start."""
    # The jobs do not need the worker.
    from cellrun_prefect import CellrunWorker

    pool, programs = sys.argv[1:]
    template = CellrunWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        client.create_work_pool(
            WorkPoolCreate(name=pool, type=CellrunWorker.type, base_job_template=template)
        )
    wanted: list[tuple[str, Any, dict[str, Any]]] = [
        ("good", good, SMALL | SECRET),
        ("bad", bad, SMALL),
        ("endless", endless, SMALL),
        ("never", good, SMALL | FAR),
    ]
    ids = {}
    for name, program, job in wanted:
        source = Path(__file__)
        remote = program.from_source(str(source.parent), f"{source.name}:{program.__name__}")
        ids[name] = str(
            remote.deploy(
                name,
                work_pool_name=pool,
                job_variables={
                    "command": f"{programs}/prefect flow-run execute",
                    "job": job,
                    "poll_seconds": 0.2,
                },
                print_next_steps=False,
                ignore_warnings=True,
            )
        )
    print(json.dumps(ids))


if __name__ == "__main__":
    main()
