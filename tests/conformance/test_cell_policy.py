"""What the operator of a cell forbids does not run there, whatever the control plane orders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.contract.messages.task_options import Mount
from controlplane.contract.states import FailureKind
from tests.conformance.kit import DockerKit
from workers.attempt.events import EndedEvent
from workers.attempt.outcome import FORBIDDEN
from workers.drivers.registry import make_driver

pytestmark = pytest.mark.engine

Cell = Callable[..., DockerKit]


@pytest.fixture
def cell(docker_kit: DockerKit) -> Cell:
    """Begin a cell with other settings."""

    def begin(**settings: Any) -> DockerKit:
        docker_kit.driver.close()
        config = docker_kit.config(**settings)
        docker_kit.driver = make_driver(config, docker_kit.events, back_off=(0.05, 0.1))
        return docker_kit

    return begin


def ran(kit: DockerKit, **spec: Any) -> EndedEvent:
    launch = kit.launch("true", **spec)
    kit.driver.start(launch)
    return kit.events.ended(launch.uid)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"privileged": True}, "privileged tasks"),
        ({"capabilities": ("MKNOD", "SYS_ADMIN")}, "task with the capability SYS_ADMIN"),
        ({"capabilities": ("CAP_NET_RAW",)}, "task with the capability CAP_NET_RAW"),
        ({"capabilities": ("ALL",)}, "task with the capability ALL"),
    ],
)
def test_cell_refuses_privileges_that_its_operator_forbids(
    cell: Cell, spec: dict[str, Any], named: str
) -> None:
    ended = ran(cell(privileged_allowed=False), **spec)
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, FORBIDDEN), ended
    assert ended.message == f"this cell allows no {named}: CELLRUN_CELL_PRIVILEGED is false"
    assert (ended.never_created, ended.started_at) == (True, None)


def test_cell_that_forbids_privileges_runs_ordinary_tasks(cell: Cell) -> None:
    kit = cell(privileged_allowed=False)
    for spec in ({}, {"capabilities": ("CAP_MKNOD", "AUDIT_WRITE", "KILL")}):
        assert ran(kit, **spec).exit_code == 0


def test_cell_accepts_privileges_by_default(cell: Cell) -> None:
    assert ran(cell(), privileged=True).exit_code == 0


@pytest.mark.parametrize("roots", [(), ("allowed",)])
def test_cell_refuses_mounts_that_its_operator_forbids(
    cell: Cell, tmp_path: Path, roots: tuple[str, ...]
) -> None:
    for name in ("allowed", "allowed-too"):
        (tmp_path / name).mkdir()
    kit = cell(mount_roots=tuple(tmp_path / name for name in roots))
    outside = ("/", "/etc", f"{tmp_path}/allowed-too", f"{tmp_path}/allowed/../allowed-too")
    for source in outside:
        ended = ran(kit, mounts=(Mount(source, "/in"),))
        assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, FORBIDDEN), ended
        assert ended.message == (
            f"this cell allows no mount of {source}: it is not below a folder of"
            " CELLRUN_CELL_MOUNTS"
        )
        assert ended.never_created


def test_cell_accepts_mounts_below_the_folders_of_its_operator(cell: Cell, tmp_path: Path) -> None:
    (tmp_path / "allowed" / "deep").mkdir(parents=True)
    kit = cell(mount_roots=(tmp_path / "allowed",))
    for source in ("allowed", "allowed/deep"):
        assert ran(kit, mounts=(Mount(f"{tmp_path}/{source}", "/in"),)).exit_code == 0
