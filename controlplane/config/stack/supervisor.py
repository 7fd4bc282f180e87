"""Write the configuration of supervisor, which restarts processes that exit."""

import os
import pwd
import shlex
import sys
from pathlib import Path

from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts.home import StackHome, write_private
from controlplane.config.stack.processes import GROUPS, PROJECT, Process

# Processes wait for their needs instead of exiting, so repeated exits mean a fault. The retries,
# with growing pauses, take about an hour.
START_RETRIES = 80
LOG_BYTES = "10MB"
LOG_BACKUPS = 2


def write_configuration(home: StackHome, processes: list[Process]) -> Path:
    """Write supervisord's configuration for `processes` and return its path."""
    lines = [
        "[supervisord]",
        "nodaemon = true",
        f"directory = {_literal(str(PROJECT))}",
        f"pidfile = {_literal(str(home.pid_file('supervisord')))}",
        f"logfile = {_literal(str(home.logs / 'supervisord.log'))}",
        f"childlogdir = {_literal(str(home.logs))}",
        "loglevel = info",
        # Without it, supervisord warns when it runs as root.
        f"user = {pwd.getpwuid(os.geteuid()).pw_name}",
    ]
    for priority, group in enumerate(GROUPS, start=1):
        members = [process.name for process in processes if process.group == group]
        if members:
            lines += [f"[group:{group}]", f"programs = {','.join(members)}"]
            lines += [f"priority = {priority * 10}"]
    for process in processes:
        lines += _program(home, process)
    path = home.run / "supervisord.conf"
    write_private(path, "\n".join(lines) + "\n")
    return path


def _program(home: StackHome, process: Process) -> list[str]:
    launch = [sys.executable, "-m", "controlplane.config.stack.launch"]
    launch += ["--process", process.name, "--run", str(home.run)]
    launch += ["--needs", ",".join(process.needs), "--death-signal", process.death_signal]
    launch += ["--reads-store"] if process.reads_store else []
    command = shlex.join([*launch, "--", *process.command])
    environment = ",".join(
        f"{name}={_quoted(value)}" for name, value in sorted(process.environment.items())
    )
    return [
        f"[program:{process.name}]",
        f"command = {_literal(command)}",
        f"environment = {environment}",
        "autorestart = true",
        "startsecs = 1",
        f"startretries = {START_RETRIES}",
        f"stopsignal = {process.stop_signal}",
        f"stopwaitsecs = {process.stop_seconds}",
        f"killasgroup = {str(process.kill_group).lower()}",
        "redirect_stderr = true",
        f"stdout_logfile = {_literal(str(home.logs / (process.name + '.log')))}",
        f"stdout_logfile_maxbytes = {LOG_BYTES}",
        f"stdout_logfile_backups = {LOG_BACKUPS}",
    ]


def command(configuration: Path) -> list[str]:
    """Return supervisord's command line, in the foreground."""
    return [str(Path(sys.executable).parent / "supervisord"), "-n", "-c", str(configuration)]


def _literal(text: str) -> str:
    """Escape `text` for supervisor, where % expands and a space may begin a comment."""
    if "\n" in text or " ;" in text or " #" in text:
        raise StackError(
            f"{text!r} must not contain ' ;', ' #' or line breaks, which supervisor cannot read"
        )
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """Return the quoted value of an environment variable."""
    if '"' in text:
        raise StackError(f"{text!r} must not contain double quotes, which supervisor cannot read")
    return f'"{_literal(text)}"'
