"""The yardstick: Celery as it comes, running a task that does nothing, no events, no results."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import redis
from celery import Celery

BROKER = "CELERY_BROKER_URL"
DONE = "noop-done"
# The faster of Celery's pools for tasks that do nothing: prefork pays for a pipe a task.
POOL = ("--pool", "threads", "--concurrency", "2")
WAIT_SECONDS = 300

app = Celery("noop", broker=os.environ.get(BROKER, ""), set_as_current=False)
app.conf.update(task_ignore_result=True, worker_send_task_events=False)


@app.task(name="noop")
def noop() -> None:
    """Do nothing."""


@app.task(name="finish")
def finish() -> None:
    """Echo that everything before it was taken."""
    redis.Redis.from_url(os.environ[BROKER]).lpush(DONE, 1)


@contextlib.contextmanager
def worker(broker_url: str) -> Iterator[int]:
    """Run one worker on its own database of the same Redis; yield its process id."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.celery_noop", "worker", *POOL]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    command += ["--loglevel", "ERROR"]
    environment = {**os.environ, BROKER: broker_url}
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            app.conf.broker_url = broker_url
            run(1, broker_url)  # it is up
            yield process.pid
        finally:
            process.terminate()


def run(count: int, broker_url: str) -> float:
    """Publish `count` tasks; seconds from the first until the worker has run the last."""
    client = redis.Redis.from_url(broker_url, socket_timeout=WAIT_SECONDS + 5)
    began = time.perf_counter()
    with app.producer_or_acquire() as producer:
        for _ in range(count):
            noop.apply_async(producer=producer)
        finish.apply_async(producer=producer)
    if client.blpop([DONE], timeout=WAIT_SECONDS) is None:
        raise RuntimeError("the yardstick's worker does not answer")
    return time.perf_counter() - began
