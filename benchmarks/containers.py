"""B7: containers through a cell, submission to the last removal, against Docker's SDK alone."""

import os
import threading
import time
import uuid
from typing import Any

import docker
import psycopg

from benchmarks.description import Description, Options, Skipped, at_least
from benchmarks.report import Result, median, others_note
from benchmarks.stand import FLEET, Stand, Wanted, standing
from benchmarks.throughput import noop_job, wait_for_jobs
from benchmarks.usage import Others, cpu_seconds, spent
from controlplane.config.stack.parts.engine import require_engine
from controlplane.config.stack.parts.image import NAME, require_image
from controlplane.contract.messages.orders import GroupSpec, RunAttempt
from workers.attempt.events import Launch
from workers.config import default_concurrency
from workers.drivers.docker.container import container_body

CONTAINERS = 100
WARM_UPS = 8
WAIT_SECONDS = 120.0
LABEL = "cellrun.installation"


ABOUT = Description(
    id="B7",
    title="containers through a cell",
    claim="A cell adds no time to the engine's.",
    workload=f"{CONTAINERS} containers that run `true`, with network none and no result file. The"
    " short size has 40.",
    peer="Docker's SDK with the same calls (create, start, wait, remove) and as many concurrent"
    " calls as a cell makes (twice the cores).",
    method="Time from the submission until all are SUCCEEDED and removed, through one cell; both"
    " in turns. A step is the median time, including the wait for an engine slot.",
    budget_seconds=60,
    targets=(at_least(0.9, "rate / rate of the SDK alone", lambda it: it["ratio"]),),
)


def run(options: Options) -> Result:
    """Run both in turns, and measure the time of each step."""
    if os.environ.get("ENGINE") == "none":
        raise Skipped("ENGINE=none: it needs a container engine")
    count = options.pick(tiny=4, short=40, full=CONTAINERS)
    warm_ups = min(WARM_UPS, count)
    require_image(require_engine(print), print)
    at_once = default_concurrency()
    result = Result(
        "B7",
        f"{count} containers `true`, network none, {at_once} calls at once",
        ("", "containers/s", "of the SDK alone", "CPU ms each"),
    )
    alone: list[float] = []
    found: list[dict[str, Any]] = []
    with (
        standing(Wanted(cells=1, driver="docker")) as stand,
        stand.connect() as connection,
        docker.APIClient(version="auto", num_pools=at_once) as api,
    ):
        _through_a_cell(stand, connection, api, warm_ups)
        _by_the_sdk(api, warm_ups, at_once)
        for _ in range(options.runs):
            alone.append(count / _by_the_sdk(api, count, at_once))
            found.append(_one_run(stand, connection, api, count))
    yardstick = median(alone)
    ours = median(one["rate"] for one in found)
    cpu = f"{median(one['cpu_ms'] for one in found):.1f}"
    result.rows.append(("SDK alone", f"{yardstick:.1f}", "1.0", ""))
    result.rows.append(("Cellrun", f"{ours:.1f}", f"{ours / yardstick:.2f}", cpu))
    steps = {name: median(one["steps"][name] for one in found) for name in found[0]["steps"]}
    for name, milliseconds in steps.items():
        if milliseconds >= 0.05:
            result.notes.append(f"step {name}: {milliseconds:.1f} ms")
    result.notes.append("CPU: of the cell's process alone, without the engine.")
    result.notes.append(others_note(one["cores_used_by_others"] for one in found))
    result.figures = {"sdk": alone, "runs": found, "ratio": ours / yardstick, "steps_ms": steps}
    return result


def _one_run(
    stand: Stand, connection: psycopg.Connection[tuple[Any, ...]], api: Any, count: int
) -> dict[str, Any]:
    before, others = cpu_seconds(stand.pids), Others(stand.pids)
    seconds, job = _through_a_cell(stand, connection, api, count)
    used = spent(before, cpu_seconds(stand.pids))[FLEET]
    statement = (
        "SELECT step.key, 1000 * percentile_cont(0.5) WITHIN GROUP (ORDER BY step.value::float)"
        " FROM controlplane_attempt, jsonb_each_text(usage -> 'steps') step"
        " WHERE job_id = %s GROUP BY step.key ORDER BY 2 DESC"
    )
    return {
        "seconds": seconds,
        "rate": count / seconds,
        "cpu_ms": 1000 * used / count,
        "steps": {str(name): float(took) for name, took in connection.execute(statement, [job])},
        "cores_used_by_others": others.cores(),
    }


def _through_a_cell(
    stand: Stand, connection: psycopg.Connection[tuple[Any, ...]], api: Any, count: int
) -> tuple[float, str]:
    """Seconds until all have SUCCEEDED and no container is left; the job."""
    body = {**noop_job(count), "task_type": "container", "image": NAME, "command": ["true"]}
    began = time.perf_counter()
    job = str(stand.post("/api/v1/jobs", {**body, "network": "none", "result_file": None})["id"])
    wait_for_jobs(stand, connection, [job])
    ours = {"label": f"{LABEL}={stand.plan.credentials.installation}"}
    stand.wait_until(
        lambda: not api.containers(all=True, quiet=True, filters=ours),
        "no container is left",
        seconds=WAIT_SECONDS,
    )
    return time.perf_counter() - began, job


def _by_the_sdk(api: Any, count: int, at_once: int) -> float:
    """Seconds for the same containers: made, started, waited for, removed."""
    left = iter(range(count))
    lock = threading.Lock()
    failed: list[Exception] = []

    def work() -> None:
        while True:
            with lock:
                if next(left, None) is None or failed:
                    return
            try:
                _one_container(api)
            except docker.errors.DockerException as error:
                failed.append(error)

    began = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return time.perf_counter() - began


def _one_container(api: Any) -> None:
    uid = str(uuid.uuid4())
    group = GroupSpec(
        id=1,
        job_id=1,
        job_name="bench",
        group="main",
        replicas=1,
        image=NAME,
        command=("true",),
        resources={"cpu_millis": 10, "memory_mib": 16, "disk_mib": 1},
        network="none",
    )
    launch = Launch(RunAttempt(uid, 1, 1, 0, 1, 0.0), group)
    labels = {"cellrun.benchmark": str(os.getpid())}
    body = container_body(launch, labels=labels, mounts=(), log_driver="json-file")
    api.create_container_from_config(body, f"bench-{uid}")
    api.start(f"bench-{uid}")
    api.wait(f"bench-{uid}")
    api.remove_container(f"bench-{uid}", v=True, force=True)
