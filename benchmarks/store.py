"""STORE: one large file from a task to an object store, against the library alone."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import requests
from obstore.store import from_url
from psycopg import Connection

from benchmarks.description import Description, Figures, Options, at_least, at_most
from benchmarks.report import Result, median
from benchmarks.stand import FLEET, Stand, Wanted, standing
from benchmarks.usage import resident_mib
from controlplane.config.stack.parts.ports import free_port

MIB = 2**20
READY_SECONDS = 30.0
WAIT_SECONDS = 600.0
SAMPLE_SECONDS = 0.05
PARTS_AT_ONCE = 4
_STEPS = """
SELECT usage -> 'steps' ->> 'outputs' FROM controlplane_attempt
WHERE job_id = %s AND released_at IS NOT NULL AND details -> 'outputs' IS NOT NULL
"""


def _growth(figures: Figures) -> float:
    return max(float(mib) for one in figures["runs"] for mib in one["grown_mib"].values())


ABOUT = Description(
    id="STORE",
    title="a large file to an object store",
    claim="A task's output reaches an object store as fast as the library alone, with flat memory.",
    workload="A task of a real cell with the process driver leaves a file of 1 GiB (short size:"
    " 256 MiB). The cell stores it by a link of a real web process in a server of the S3 API on"
    " the same machine.",
    peer="obstore alone stores the same file in parts.",
    method="Time of the step `outputs` of the attempt. The memory of web and cell is read while"
    " the file is on its way. The server shares the cores with the rest and limits both rates, so"
    " the ratio is not that of a fast object store: there, a cell first reads the file once for"
    " its checksums and then uses one connection for each file.",
    budget_seconds=50,
    targets=(
        at_least(0.9, "rate / rate of obstore alone", lambda it: it["ratio"]),
        at_most(64, "growth of memory of web or cell", _growth, "MiB"),
    ),
)


def run(options: Options) -> Result:
    """Store the file by both in turns."""
    size = options.pick(tiny=8, short=256, full=1024)
    result = Result("STORE", f"a file of {size} MiB to an object store", ("", "MiB/s", "ratio"))
    alone: list[float] = []
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="cellrun-bench-store-") as folder, _server(folder):
        path = Path(folder, "file")
        _write(path, size)
        settings = {"CELLRUN_STORE_URL": "s3://bucket/cellrun"}
        wanted = Wanted(cells=1, driver="process", settings=settings)
        with standing(wanted) as stand, stand.connect() as connection:
            _through_a_cell(stand, connection, path, 2)
            for _ in range(options.runs):
                alone.append(size / _by_the_library(path))
                found.append(_through_a_cell(stand, connection, path, size))
    yardstick = median(alone)
    ours = median(one["rate"] for one in found)
    result.rows.append(("obstore alone", f"{yardstick:.0f}", "1.00"))
    result.rows.append(("a task's output", f"{ours:.0f}", f"{ours / yardstick:.2f}"))
    for name in ("web", "cell"):
        most = max(one["grown_mib"][name] for one in found)
        result.notes.append(f"memory of {name} grew by {most:.0f} MiB during the upload")
    result.figures = {"alone": alone, "runs": found, "ratio": ours / yardstick}
    return result


def _by_the_library(path: Path) -> float:
    began = time.perf_counter()
    options: Any = {"allow_http": True, "timeout": timedelta(seconds=WAIT_SECONDS)}
    library = from_url("s3://bucket/alone", client_options=options)
    with path.open("rb") as file:
        obstore.put(library, "file", file, max_concurrency=PARTS_AT_ONCE)
    return time.perf_counter() - began


def _through_a_cell(
    stand: Stand, connection: Connection[tuple[Any, ...]], path: Path, mib: int
) -> dict[str, Any]:
    """Run a task that leaves the first part of the file; return the rate of its step `outputs`."""
    job = {
        "name": "store",
        "command": ["sh", "-c", f"head -c {mib * MIB} {path} > $CELLRUN_ROOT/out/file"],
        "task_type": "process",
        "resources": {"cpu": 1, "memory": "64Mi", "disk": "4Gi"},
        "outputs": [{"path": "/out/file", "name": "file"}],
    }
    pids = {"web": stand.pids["web"], "cell": stand.pids[FLEET]}
    before = {name: resident_mib(pid) for name, pid in pids.items()}
    with _peaks(pids) as peaks:
        job_id = stand.post("/api/v1/jobs", job)["id"]
        seconds: list[float] = []

        def is_stored() -> bool:
            row = connection.execute(_STEPS, [job_id]).fetchone()
            seconds.extend([float(row[0])] if row is not None else [])
            return row is not None

        stand.wait_until(is_stored, "the output is stored", seconds=WAIT_SECONDS)
    return {
        "rate": mib / seconds[0],
        "grown_mib": {name: peaks[name] - before[name] for name in pids},
    }


@contextmanager
def _peaks(pids: dict[str, int]) -> Iterator[dict[str, float]]:
    """Watch the memory of processes; yield the highest values so far."""
    peaks, is_over = dict.fromkeys(pids, 0.0), threading.Event()

    def watch() -> None:
        while not is_over.wait(SAMPLE_SECONDS):
            for name, pid in pids.items():
                peaks[name] = max(peaks[name], resident_mib(pid))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        is_over.set()
        thread.join()


def _write(path: Path, mib: int) -> None:
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))


@contextmanager
def _server(folder: str) -> Iterator[None]:
    """Start a server of the S3 API; lead this process and its children to it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with Path(folder, "s3.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        end = time.monotonic() + READY_SECONDS
        while not _is_created(url) and time.monotonic() < end:
            time.sleep(0.1)
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "cellrun",
            "AWS_SECRET_ACCESS_KEY": "hush",
            "AWS_ENDPOINT_URL": url,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        yield
    finally:
        server.terminate()
        server.wait()


def _is_created(url: str) -> bool:
    try:
        return requests.put(f"{url}/bucket", timeout=5).ok
    except requests.RequestException:
        return False
