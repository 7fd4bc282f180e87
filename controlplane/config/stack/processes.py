"""Define the processes of the stack: command, environment, needs and signals of each."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.config.process_settings import READ_BY
from controlplane.config.stack.parts import host, postgres, redis
from controlplane.config.stack.parts.credentials import Credentials
from controlplane.config.stack.parts.home import StackHome
from controlplane.contract.secret_files import STORE_CREDENTIALS

PROJECT = Path(__file__).resolve().parents[3]

# Started in this order, stopped in reverse, so that cells send Goodbye while the inbox runs.
GROUPS = ("services", "control", "cells")

# A cell that stops its containers gives each its grace (10 s by default) and then reports.
CELL_STOP_SECONDS = 60

# Flower keeps about 6 KB for each task it has seen.
FLOWER_MAX_TASKS = 20_000
# Cells end, and containers of the control plane get new names: Flower lists dead workers for so
# long, time enough to notice them.
FLOWER_FORGETS_SECONDS = 600

# Idle connections and followers of logs included. Beyond it, requests get 503 instead of a share of
# a process that can no longer answer any in time.
WEB_CONNECTIONS = 4_000
# Twice the largest frame of an exec session.
WEBSOCKET_BYTES = 131_072

# Prefixes of variables that processes get only from their definitions below. Those of the caller
# are dropped, since its shell may have read the run/env of another stack.
OWN_PREFIXES = ("CELLRUN_", "CELERY_", "DATABASE_URL", "DJANGO_", "FLOWER_")


@dataclass(frozen=True, slots=True)
class Process:
    """One supervised process."""

    name: str
    group: str
    command: list[str]
    needs: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    stop_signal: str = "TERM"
    stop_seconds: int = 20
    death_signal: str = "TERM"
    kill_group: bool = True
    reads_store: bool = False
    """Whether it keeps the caller's variables of object stores, such as AWS_SECRET_ACCESS_KEY."""


@dataclass(frozen=True, slots=True)
class StackPlan:
    """The decisions of one start of the stack."""

    home: StackHome
    credentials: Credentials
    web_port: int
    flower_port: int
    cells: int
    driver: str
    database_url: str
    broker_url: str
    database: postgres.Cluster | None
    redis_port: int | None
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Return the URL of the web process."""
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def has_redis_users(self) -> bool:
        """Return whether cells have logins of their own: in the stack's own Redis."""
        return self.redis_port is not None and self.cells > 0

    @property
    def flower_url(self) -> str:
        """Return the URL of Flower."""
        return f"http://127.0.0.1:{self.flower_port}"

    @property
    def flower_login(self) -> str:
        """Return the login of Flower as user:password."""
        return f"{self.credentials.flower_user}:{self.credentials.flower_password}"

    @property
    def cell_names(self) -> list[str]:
        """Return the names of the cells: cell-1, cell-2, …"""
        return [f"cell-{number}" for number in range(1, self.cells + 1)]

    def control_environment(self, process: str) -> dict[str, str]:
        """Return the environment of a process of the control plane: only what it reads."""
        settings = {
            "CELLRUN_FLOWER_URL": self.flower_url,
            **self.overrides,
            "CELLRUN_HOME": str(self.home.root),
            "CELLRUN_PROCESS": process,
            "CELLRUN_PUBLIC_URL": self.url,
            "CELLRUN_SECRET_KEY": self.credentials.secret_key,
            "CELERY_BROKER_URL": self.broker_url,
            **({"CELLRUN_REDIS_USERS": "true"} if self.has_redis_users else {}),
            "DATABASE_URL": self.database_url,
            # In the environment, since command lines are public. With a login, Flower's API also
            # refuses requests from other sites.
            "FLOWER_BASIC_AUTH": self.flower_login,
        }
        read = {name: value for name, value in settings.items() if name in READ_BY[process]}
        return {**read, "DJANGO_SETTINGS_MODULE": "controlplane.config.settings"}


def list_processes(plan: StackPlan) -> list[Process]:
    """Return every process of the stack that `plan` describes."""
    return [*_services(plan), *_control(plan), *(_cell(plan, name) for name in plan.cell_names)]


def inherited_environment() -> dict[str, str]:
    """Return the caller's environment without settings of Cellrun.

    Packages on the caller's PYTHONPATH, such as plugins, follow those of the project.
    """
    folders = filter(None, (str(PROJECT), os.environ.get("PYTHONPATH")))
    return {
        name: value for name, value in os.environ.items() if not name.startswith(OWN_PREFIXES)
    } | {
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(folders),
    }


def _services(plan: StackPlan) -> list[Process]:
    found = []
    if plan.database:
        command = postgres.server_command(plan.database, death_signal="INT")
        # INT ends its sessions and stops; TERM would wait until every client disconnects.
        found.append(
            Process("postgres", "services", command, stop_signal="INT", death_signal="INT")
        )
    if plan.redis_port:
        command = redis.server_command(port=plan.redis_port, folder=plan.home.run)
        found.append(Process("redis", "services", command))
    return found


def _control(plan: StackPlan) -> list[Process]:
    web = [sys.executable, "-m", "uvicorn", "controlplane.config.asgi:application"]
    web += ["--host", "127.0.0.1", "--port", str(plan.web_port), "--lifespan", "off"]
    web += ["--no-access-log", "--timeout-graceful-shutdown", "5"]
    web += ["--http", "controlplane.config.http_protocol:PromptHeaders"]
    web += ["--timeout-keep-alive", "5", "--limit-concurrency", str(WEB_CONNECTIONS)]
    web += ["--ws", "controlplane.config.http_protocol:PromptWebSockets"]
    web += ["--ws-max-size", str(WEBSOCKET_BYTES)]
    web += ["--ws-ping-interval", "10", "--ws-ping-timeout", "20"]
    web += ["--ws-per-message-deflate", "false"]
    beat = [*_celery("controlplane.config.celery"), "beat"]
    beat += ["--schedule", str(plan.home.beat / "schedule"), "--pidfile="]
    flower = [*_celery("controlplane.config.flower"), "flower", "--address=127.0.0.1"]
    flower += [f"--port={plan.flower_port}", f"--max_tasks={FLOWER_MAX_TASKS}"]
    flower += [f"--purge_offline_workers={FLOWER_FORGETS_SECONDS}", "--read_only=true"]
    all_needs = ("database", "broker", "preparation")

    def control(name: str, command: list[str], needs: tuple[str, ...]) -> Process:
        return Process(
            name,
            "control",
            command,
            needs,
            plan.control_environment(name),
            reads_store=not READ_BY[name].isdisjoint(STORE_CREDENTIALS),
        )

    return [
        control("web", web, all_needs),
        control("placement", _worker("controlplane.config.celery", "placement"), all_needs),
        control("convergence", _worker("controlplane.config.celery", "convergence"), all_needs),
        control("inbox", _worker("controlplane.config.inbox", "inbox", "inbox.control"), all_needs),
        control("callbacks", _worker("controlplane.config.celery", "callbacks"), all_needs),
        control("beat", beat, ("broker", "preparation")),
        control("flower", flower, ("broker", "preparation")),
    ]


def _celery(app: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", app]


def _worker(app: str, name: str, queue: str | None = None) -> list[str]:
    command = [*_celery(app), "worker", "--hostname", f"{name}@%h", "--queues", queue or name]
    command += ["--pool", "solo", "--without-gossip", "--without-mingle", "--task-events"]
    return [*command, "--loglevel", "INFO"]


def _cell(plan: StackPlan, name: str) -> Process:
    folder = plan.home.cell(name)
    overrides = {
        key: value
        for key, value in plan.overrides.items()
        if key == "CELLRUN_LOG_LEVEL" or key.startswith("CELLRUN_CELL_")
    }
    environment = {
        "CELLRUN_CELL_CAPACITY": host.share_of_host(plan.cells, plan.home.root),
        **overrides,
        "CELLRUN_CELL_NAME": name,
        "CELLRUN_CELL_DRIVER": plan.driver,
        "CELLRUN_CELL_HOME": str(folder),
        "CELLRUN_CELL_KEY_FILE": str(folder / "key"),
        # The stop of a stack stops all attempts; elsewhere a successor adopts them.
        "CELLRUN_CELL_EVACUATE": "true",
        "CELLRUN_CONTROL_URL": plan.url,
        "CELLRUN_INSTALLATION": plan.credentials.installation,
        "CELERY_BROKER_URL": plan.broker_url,
    }
    if plan.has_redis_users:
        environment["CELERY_BROKER_URL"] = f"redis://127.0.0.1:{plan.redis_port}/0"
        environment["CELLRUN_CELL_BROKER_LOGIN"] = "key"
    return Process(
        name,
        "cells",
        [sys.executable, "-m", "workers"],
        ("preparation", "broker", "web"),
        environment,
        stop_seconds=CELL_STOP_SECONDS,
        # Tasks of the process driver, which the cell started, must outlive it.
        kill_group=False,
        # Its own credentials, for the files of jobs at s3:// and other addresses.
        reads_store=True,
    )
