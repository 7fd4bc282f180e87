"""Drivers by name: the only module that constructs them."""

import resource
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

from workers import clock
from workers.attempt.attempt import DriverContext
from workers.attempt.events import Listener
from workers.attempt.fair_semaphore import FairSemaphore
from workers.attempt.pulls import Pulls
from workers.attempt.runtime import Engine
from workers.config import CellConfig
from workers.control_api import Web
from workers.drivers.base import Driver
from workers.drivers.docker.driver import DockerEngine
from workers.drivers.memory import MemoryDriver
from workers.drivers.pipeline import PipelineDriver
from workers.drivers.process.engine import ProcessEngine
from workers.drivers.runner.dispatch import RoutedDriver
from workers.drivers.runner.driver import InstalledRunners, RunnerDriver, Runners
from workers.output.shipper import LogShipper
from workers.remote_files import Storage
from workers.runners.discovery import load_runners
from workers.secret_folder import SecretFolder, default_folder

OPEN_FILES = 16_384  # two connections and a few files for each of a thousand attempts
BACK_OFF_SECONDS = (1.0, 4.0)  # three tries of a stage span a short restart of the engine


def make_driver(
    config: CellConfig, emit: Listener, *, back_off: tuple[float, ...] = BACK_OFF_SECONDS
) -> Driver:
    """Return the driver that `config.driver` names, reporting to `emit`. Raise KeyError."""
    return _MAKERS[config.driver](config, emit, back_off)


def _make_memory(config: CellConfig, emit: Listener, back_off: tuple[float, ...]) -> Driver:
    return MemoryDriver(emit, clock=clock.wall_seconds, threaded=True)


def _make_docker(config: CellConfig, emit: Listener, back_off: tuple[float, ...]) -> Driver:
    engine = DockerEngine(
        installation=config.installation,
        cell=config.name,
        home=config.home,
        address=partial(address_of, config),
        gpus=config.capacity.get("gpu", 0),
    )
    return make_pipeline(engine, config, emit, back_off)


def _make_process(config: CellConfig, emit: Listener, back_off: tuple[float, ...]) -> Driver:
    engine = ProcessEngine(
        home=config.home,
        max_log_bytes=config.max_log_bytes,
        gpus=config.capacity.get("gpu", 0),
    )
    return make_pipeline(engine, config, emit, back_off)


def make_pipeline(
    engine: Engine,
    config: CellConfig,
    emit: Listener,
    back_off: tuple[float, ...],
    offered: InstalledRunners | None = None,
) -> Driver:
    """Return a driver of `engine` and of the runners `offered`; None: those in `config`."""
    allow_open_files()
    work, logs = config.home / "work", config.home / "logs"
    for folder in (work, logs):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # orders contain environment variables
    shipper = LogShipper(
        control_url=config.control_url,
        cell=config.name,
        key=config.key,
        folder=logs,
    )
    shipper.start()
    secrets = SecretFolder(
        config.secrets or default_folder(config.installation, config.name, config.home),
        may_be_on_disk=config.secrets_on_disk,
    )
    secrets.sweep(work)
    web = Web(control_url=config.control_url, cell=config.name, key=config.key)
    context = DriverContext(
        cell=config.name,
        engine=engine,
        emit=emit,
        home=config.home,
        max_log_bytes=config.max_log_bytes,
        turns=FairSemaphore(config.concurrency),
        pulls=Pulls(engine),
        shipper=shipper,
        web=web,
        secrets=secrets,
        storage=Storage(
            file_roots=config.file_roots,
            file_systems=config.file_systems,
            credentials=config.store_credentials,
            allowed_networks=config.allowed_networks,
            sign=web.sign_link,
        ),
        max_files_bytes=config.max_files_bytes,
        privileged_allowed=config.privileged_allowed,
        mount_roots=config.mount_roots,
        back_off=back_off,
        address=partial(address_of, config),
    )
    own = PipelineDriver(context)
    if offered is None:
        offered = InstalledRunners(load_runners(config.runners))
    if not offered.runners:
        return own
    runners = Runners(offered, cell=config.name, context=context)
    return RoutedDriver(own, RunnerDriver(replace(context, engine=runners.engine), runners))


def address_of(config: CellConfig) -> str:
    """Return the configured address of this cell, or the local address of the route to web."""
    if config.address:
        return config.address
    web = urlsplit(config.control_url)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Sends no packet: connect() on UDP only selects the route.
            probe.connect((web.hostname or "", web.port or 80))
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname() if web.hostname else "127.0.0.1"


def allow_open_files() -> None:
    """Raise this process's limit of open files to OPEN_FILES, or to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


_MAKERS: dict[str, Callable[[CellConfig, Listener, tuple[float, ...]], Driver]] = {
    "docker": _make_docker,
    "process": _make_process,
    "memory": _make_memory,
}
