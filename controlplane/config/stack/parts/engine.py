"""Find a container engine, or install and start one.

An engine is found at DOCKER_HOST or the usual sockets. Docker Engine is installed and started only
as root on a Debian family system, after a message, and is left running.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import docker
import requests
from docker.errors import DockerException

from controlplane.config.stack.failure import StackError

DOCKER_SOCKET = Path("/var/run/docker.sock")
SOCKETS = (DOCKER_SOCKET, Path("/run/podman/podman.sock"))
PID_FILE = Path("/var/run/docker.pid")
LOG_FILE = Path("/var/log/dockerd.log")
ANSWER_SECONDS = 5
# A killed containerd that has not ended yet delays a new dockerd for 15 s.
START_SECONDS = 30.0
START_TRIES = 3

Echo = Callable[[str], None]


def find_engine() -> str | None:
    """Return the address of an engine that responds, or None."""
    chosen = os.environ.get("DOCKER_HOST")
    if chosen:
        return chosen if _responds(chosen) else None
    own = Path(f"/run/user/{os.geteuid()}/podman/podman.sock")
    for path in (*SOCKETS, own):
        if path.exists() and _responds(f"unix://{path}"):
            return f"unix://{path}"
    return None


def require_engine(echo: Echo) -> str:
    """Return the address of an engine; as root on Debian, install and start one if needed."""
    found = find_engine()
    if found:
        return found
    if os.environ.get("DOCKER_HOST"):
        raise StackError(
            f"no container engine responds at DOCKER_HOST={os.environ['DOCKER_HOST']}:"
            " start it, or correct DOCKER_HOST"
        )
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise StackError(
            "no container engine responds: start Docker or Podman, set DOCKER_HOST, or run with"
            " ENGINE=process (processes without isolation)"
        )
    if not shutil.which("dockerd"):
        echo("no container engine on this machine: installing Debian's docker.io with apt-get")
        apt_install("docker.io")
    if Path("/run/systemd/system").is_dir():
        echo("starting the service docker; it is left running")
        subprocess.run(["systemctl", "start", "docker"], capture_output=True, check=False)
        if _responds_within(f"unix://{DOCKER_SOCKET}", START_SECONDS):
            return f"unix://{DOCKER_SOCKET}"
        raise StackError("the service docker does not start: see `systemctl status docker`")
    echo(f"starting dockerd in the background (log: {LOG_FILE}); it is left running")
    _prepare_cgroups()
    for _ in range(START_TRIES):
        _forget_dead_daemon()
        if _start_daemon():
            return f"unix://{DOCKER_SOCKET}"
        time.sleep(2)
    raise StackError(f"dockerd did not start; the end of {LOG_FILE}:\n{_log_tail()}")


def apt_install(*packages: str) -> None:
    """Install Debian packages. Raise StackError with the output of apt-get."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (
        ["update", "-qq"],
        ["install", "-y", "-qq", "--no-install-recommends", *packages],
    ):
        done = subprocess.run(
            ["apt-get", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise StackError(f"apt-get {' '.join(arguments)} failed:\n{done.stderr}")


def _responds(address: str) -> bool:
    if urlsplit(address).scheme not in ("unix", "tcp", "http"):
        return True  # ssh:// and others: left to the engine's own library
    try:
        with closing(_connect(address)) as client:
            return bool(client.ping())
    except (DockerException, requests.RequestException):
        return False


def _connect(address: str) -> docker.APIClient:
    return docker.APIClient(base_url=address, version="auto", timeout=ANSWER_SECONDS)


def _responds_within(
    address: str, seconds: float, *, while_true: Callable[[], bool] = lambda: True
) -> bool:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up and while_true():
        if _responds(address):
            return True
        time.sleep(0.1)
    return False


def _start_daemon() -> bool:
    command = ["dockerd", f"--host=unix://{DOCKER_SOCKET}", f"--pidfile={PID_FILE}"]
    if not _firewall_works():
        command += ["--iptables=false", "--ip6tables=false"]
    with LOG_FILE.open("ab") as log:
        daemon = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    address = f"unix://{DOCKER_SOCKET}"
    if _responds_within(address, START_SECONDS, while_true=lambda: daemon.poll() is None):
        return True
    if daemon.poll() is None:
        daemon.kill()
        daemon.wait()
    return False


def _firewall_works() -> bool:
    if not shutil.which("iptables"):
        return False
    done = subprocess.run(
        ["iptables", "-w", "-t", "nat", "-L", "-n"], capture_output=True, check=False
    )
    return done.returncode == 0


def _prepare_cgroups() -> None:
    """Mount the control groups if they are not mounted, as in a container."""
    folder = Path("/sys/fs/cgroup")
    if not folder.is_dir() or any(folder.iterdir()):
        return
    subprocess.run(["mount", "-t", "tmpfs", "cgroup", str(folder)], check=False)
    for line in Path("/proc/cgroups").read_text().splitlines()[1:]:
        name, _, _, enabled = line.split()
        if enabled == "1":
            (folder / name).mkdir(exist_ok=True)
            subprocess.run(
                ["mount", "-t", "cgroup", "-o", name, "cgroup", str(folder / name)], check=False
            )


def _forget_dead_daemon() -> None:
    """Remove the pid file of a killed dockerd, since a new one would assume that it runs."""
    try:
        pid = int(PID_FILE.read_text())
    except (OSError, ValueError):
        return
    try:
        # "pid (name) state …": a killed one may remain as a zombie, which kill -0 finds.
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition(") ")
        alive = name.endswith("(dockerd") and not rest.startswith("Z")
    except OSError:
        alive = False
    if not alive:
        PID_FILE.unlink(missing_ok=True)


def _log_tail() -> str:
    try:
        return "\n".join(LOG_FILE.read_text(errors="replace").splitlines()[-15:])
    except OSError as fault:
        return str(fault)


def engine_version(address: str) -> str:
    """Return name and version of the engine; an empty text if it reports none."""
    if urlsplit(address).scheme != "unix":
        return ""
    try:
        with closing(_connect(address)) as client:
            answer = client.version()
    except (DockerException, requests.RequestException):
        return ""
    return f"{answer.get('Platform', {}).get('Name') or 'engine'} {answer.get('Version', '')}"
