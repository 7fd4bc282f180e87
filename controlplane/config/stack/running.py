"""Run one stack: start it completely or not at all, and stop all of its processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

from controlplane.config.stack import launch, preparation, readiness, supervisor
from controlplane.config.stack.exits import Exits
from controlplane.config.stack.failure import StackError
from controlplane.config.stack.options import Options, choose_ports
from controlplane.config.stack.parts import credentials, engine, image, ports, postgres, redis
from controlplane.config.stack.parts.engine import Echo
from controlplane.config.stack.parts.home import StackHome, shell_lines, write_private
from controlplane.config.stack.processes import (
    PROJECT,
    Process,
    StackPlan,
    inherited_environment,
    list_processes,
)

# Cells stop first, then the control plane, then the services: the sum of three waits.
STOP_SECONDS = 120.0


class Stack:
    """The stack in one state folder. Use it as a context manager, whose exit stops the stack."""

    def __init__(self, options: Options, echo: Echo) -> None:
        self._options = options
        self._echo = echo
        self._home = StackHome(options.home)
        self._lock: IO[str] | None = None
        self._supervisor: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()
        self._exits = Exits(self._home)
        self.plan: StackPlan | None = None

    def __enter__(self) -> "Stack":
        self._lock = self._home.hold()
        try:
            self._start()
        except StackError as fault:
            ends = readiness.log_ends(self._home, sorted(set(self._exits.names)))
            self._home.failure_file.write_text(f"{fault}\n")
            self.stop()
            raise StackError("\n".join([str(fault), *ends])) from None
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        self._home.forget_run()
        self._home.failure_file.unlink(missing_ok=True)
        self._home.stack_pid_file.write_text(f"{os.getpid()}\n")
        if self._options.driver == "docker":
            address = engine.require_engine(self._echo)
            self._echo(f"containers run on {engine.engine_version(address) or address}")
            image.require_image(address, self._echo)
        plan = self.plan = self._make_plan()
        preparation.check_settings(plan)
        if plan.database:
            postgres.create_cluster(plan.database, password=plan.credentials.database_password)
        write_private(self._home.environment_file, shell_lines(shell_environment(plan)))
        processes = list_processes(plan)
        self._start_supervisor(processes)
        preparation.prepare(plan, self._echo, self._check_start)
        self._home.prepared_mark.touch()
        readiness.wait_until_ready(plan, processes, self._echo, self._check_start)

    def _make_plan(self) -> StackPlan:
        options, home = self._options, self._home
        secret = credentials.load_or_create(home)
        web_port, flower_port = choose_ports(options)
        taken = {web_port, flower_port}
        cluster, redis_port = None, None
        database_url, broker_url = options.database_url, options.broker_url
        if not database_url:
            cluster = postgres.Cluster(home.root / "postgres-18", port=ports.free_port(taken=taken))
            database_url = (
                f"postgresql://{postgres.USER}:{secret.database_password}"
                f"@127.0.0.1:{cluster.port}/{postgres.DATABASE}"
            )
        if not broker_url:
            redis_port = ports.free_port(taken=taken)
            broker_url = redis.broker_url(port=redis_port, password=secret.redis_password)
            redis.write_password(home.run, secret.redis_password)
        return StackPlan(
            home=home,
            credentials=secret,
            web_port=web_port,
            flower_port=flower_port,
            cells=options.cells,
            driver=options.driver,
            database_url=database_url,
            broker_url=broker_url,
            database=cluster,
            redis_port=redis_port,
            overrides=options.overrides,
        )

    def _start_supervisor(self, processes: list[Process]) -> None:
        configuration = supervisor.write_configuration(self._home, processes)
        self._supervisor = subprocess.Popen(
            supervisor.command(configuration),
            cwd=PROJECT,
            env=inherited_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C signals the whole foreground group, but the stack must stop in order.
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        threading.Thread(
            target=self._report_exits, args=(self._supervisor.stdout,), daemon=True
        ).start()

    def _report_exits(self, lines: IO[str]) -> None:
        self._exits.read((line for line in lines if not self._stopping.is_set()), self._echo)

    def _check_start(self) -> None:
        """Raise StackError if supervisord ended or a process refuses to start."""
        self._exits.check()
        if self._supervisor is not None and self._supervisor.poll() is not None:
            raise StackError(
                f"supervisord ended with exit code {self._supervisor.returncode}:"
                f" see {self._home.logs / 'supervisord.log'}"
            )

    def wait(self) -> int:
        """Wait until supervisord ends unexpectedly, and return 1."""
        assert self._supervisor is not None
        self._supervisor.wait()
        code = self._supervisor.returncode
        self._echo(f"supervisord ended unexpectedly with exit code {code}")
        return 1

    def stop(self) -> None:
        """Stop all processes in order and remove the files of the run. Idempotent."""
        self._stopping.set()
        process, self._supervisor = self._supervisor, None
        if process is not None:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._echo(
                    f"supervisord did not stop within {STOP_SECONDS:.0f} s: killing it with its"
                    " processes"
                )
                process.kill()
                process.wait()
            self._wait_for_processes()
        if self._lock is not None:
            self._home.forget_run()
            self._lock.close()
            self._lock = None

    def _wait_for_processes(self) -> None:
        """Wait until all processes have ended; the kernel signals those of a killed supervisor."""
        assert self.plan is not None
        files = {
            process.name: self._home.pid_file(process.name) for process in list_processes(self.plan)
        }
        give_up = time.monotonic() + STOP_SECONDS
        while left := [name for name, path in files.items() if _is_alive(path)]:
            if time.monotonic() > give_up:
                self._echo(f"still running: {', '.join(left)} (see {self._home.run})")
                return
            time.sleep(0.1)


def shell_environment(plan: StackPlan) -> dict[str, str]:
    """Return the addresses, logins and tokens of the stack."""
    secret = plan.credentials
    return {
        "CELLRUN_URL": plan.url,
        "CELLRUN_TOKEN": secret.submitter_token,
        "CELLRUN_OPERATOR_TOKEN": secret.operator_token,
        "CELLRUN_ADMIN_USER": secret.admin_user,
        "CELLRUN_ADMIN_PASSWORD": secret.admin_password,
        "FLOWER_BASIC_AUTH": plan.flower_login,
        "CELERY_BROKER_URL": plan.broker_url,
        **({"CELLRUN_REDIS_USERS": "true"} if plan.has_redis_users else {}),
        "DATABASE_URL": plan.database_url,
    }


def _die_with_parent() -> None:
    launch.die_with_parent("TERM" if sys.platform == "linux" else "")


def _is_alive(pid_file: Path) -> bool:
    """Return whether the process in `pid_file` runs; a zombie does not."""
    try:
        pid = int(pid_file.read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return False
    try:
        # "pid (name) state …": only Linux has this file, and orphans are possible only there.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] != "Z"
    except OSError:
        return sys.platform != "linux"
