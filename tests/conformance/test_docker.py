"""What is particular to containers: images, limits, isolation, and an engine that goes away."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.contract.messages.orders import Input
from controlplane.contract.messages.reports import COMMAND, REGISTRY, SPEC
from controlplane.contract.messages.reports import IMAGE as IMAGE_REASON
from controlplane.contract.states import FailureKind, Phase
from tests.conformance.cable import Cable
from tests.conformance.kit import IMAGE, DockerKit, until
from tests.conformance.registry import Registry
from tests.harness.web import Answer, Web
from workers.attempt.events import BuildingEvent, EndedEvent, StartedEvent
from workers.attempt.outcome import ENGINE, OUT_OF_MEMORY, STOPPED
from workers.drivers.base import EngineAway
from workers.drivers.docker.connection import find_socket

pytestmark = pytest.mark.engine


def ran(kit: DockerKit, *command: str, **spec: Any) -> EndedEvent:
    """The end of a command."""
    launch = kit.launch(*command, **spec)
    kit.driver.start(launch)
    return kit.events.ended(launch.uid)


# ----------------------------------------------------------------------------- name and labels


def test_container_labels_identify_job_task_and_attempt(docker_kit: DockerKit) -> None:
    ended = ran(docker_kit, "true")
    labels = docker_kit.inspect(ended.uid)["Config"]["Labels"]
    assert labels == {
        "cellrun.installation": docker_kit.installation,
        "cellrun.cell": "cell-1",
        "cellrun.job": "7",
        "cellrun.job_name": "suite",
        "cellrun.group": "main",
        "cellrun.task": "11",
        "cellrun.attempt": ended.uid,
        "cellrun.gang": "",
        "cellrun.gpus": "",
        "cellrun.network": "",
    }
    assert ended.container_id == docker_kit.inspect(ended.uid)["Id"]


def test_containers_of_other_installations_and_cells_are_not_listed(docker_kit: DockerKit) -> None:
    foreign = [{"cellrun.cell": "cell-1"}, {"cellrun.installation": docker_kit.installation}]
    names = []
    for labels in foreign:
        body = {
            "Image": IMAGE,
            "Cmd": ["true"],
            "Labels": {**labels, "cellrun.attempt": str(uuid.uuid4())},
        }
        names.append(docker_kit.outside.create_container_from_config(body)["Id"])
    try:
        assert list(docker_kit.driver.find()) == []
    finally:
        for name in names:
            docker_kit.outside.remove_container(name)


# ----------------------------------------------------------------------------- limits


def test_limits_are_enforced_by_the_engine(docker_kit: DockerKit) -> None:
    resources = {"cpu_millis": 250, "memory_mib": 48}
    ended = ran(docker_kit, "true", resources=resources, max_pids=77, shm_mib=8)
    limits = docker_kit.inspect(ended.uid)["HostConfig"]
    assert limits["NanoCpus"] == 250_000_000
    assert (limits["Memory"], limits["MemorySwap"]) == (48 * 2**20, 48 * 2**20)
    assert (limits["PidsLimit"], limits["ShmSize"]) == (77, 8 * 2**20)


# Their numbers in linux/capability.h.
CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "NET_BIND_SERVICE": 10,
    "SYS_CHROOT": 18,
}


def test_container_has_few_capabilities_and_no_new_privileges(docker_kit: DockerKit) -> None:
    ended = ran(docker_kit, "grep", "-E", "CapBnd|NoNewPrivs", "/proc/self/status", user="0")
    words = docker_kit.log(ended.uid).split()
    mask = sum(1 << number for number in CAPABILITIES.values())
    assert int(words[words.index("CapBnd:") + 1], 16) == mask
    assert words[words.index("NoNewPrivs:") + 1] == "1"


def test_out_of_memory_has_a_distinct_reason(docker_kit: DockerKit) -> None:
    script = "x=a; while true; do x=$x$x; done"
    ended = ran(docker_kit, "sh", "-c", script, resources={"memory_mib": 16})
    assert (ended.exit_code, ended.failure_kind) == (137, FailureKind.USER)
    assert (ended.reason, ended.message) == (OUT_OF_MEMORY, "out of memory")


def test_out_of_memory_child_of_a_successful_program_is_no_failure(docker_kit: DockerKit) -> None:
    script = "sh -c 'x=a; while true; do x=$x$x; done'; exit 0"
    ended = ran(docker_kit, "sh", "-c", script, resources={"memory_mib": 16})
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (0, None, None)


def test_network_none_has_only_the_loopback(docker_kit: DockerKit) -> None:
    ended = ran(docker_kit, "ls", "/sys/class/net", network="none")
    assert docker_kit.log(ended.uid) == "lo\n"
    ended = ran(docker_kit, "ls", "/sys/class/net", network="default")
    assert docker_kit.log(ended.uid) == "eth0\nlo\n"


def test_user_of_the_spec_overrides_the_user_of_the_image(docker_kit: DockerKit) -> None:
    assert docker_kit.log(ran(docker_kit, "id", "-u").uid) == "10001\n"
    assert docker_kit.log(ran(docker_kit, "id", "-u", user="123:45").uid) == "123\n"


# ----------------------------------------------------------------------------- files


def test_read_only_container_reads_inputs_and_writes_a_result(
    docker_kit: DockerKit, web: Web
) -> None:
    web.files["/text"] = b"the text\n"
    script = "cp /in/text /out/result; touch /out/more; touch /new && exit 9; exit 0"
    inputs = (Input("/in/text", f"{web.url}/text"),)
    ended = ran(
        docker_kit, "sh", "-c", script, inputs=inputs, result_file="/out/result", read_only=True
    )
    assert (ended.exit_code, ended.result) == (0, "the text\n")


def test_existing_folders_keep_their_mode_and_owner(docker_kit: DockerKit, web: Web) -> None:
    web.files["/text"] = b"x"
    inputs = (Input("/etc/new/text", f"{web.url}/text"), Input("/tmp/text", f"{web.url}/text"))
    script = "stat -c '%a %u' /tmp /etc; cat /etc/passwd | wc -l"
    ended = ran(docker_kit, "sh", "-c", script, inputs=inputs, result_file="/tmp/result")
    assert docker_kit.log(ended.uid) == "1777 0\n755 0\n2\n"


def test_result_folder_of_the_image_becomes_writable(docker_kit: DockerKit) -> None:
    script = "cat /etc/passwd > /etc/copy; echo 1 > /etc/result"
    ended = ran(docker_kit, "sh", "-c", script, result_file="/etc/result")
    assert (ended.exit_code, ended.result) == (0, "1\n")


# ----------------------------------------------------------------------------- images


def test_missing_image_with_pull_policy_never_is_a_user_failure(docker_kit: DockerKit) -> None:
    ended = ran(docker_kit, "true", image="cellrun/missing:1", pull_policy="never")
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, IMAGE_REASON)
    assert (ended.exit_code, ended.started_at) == (None, None)
    assert ended.never_created


def test_malformed_image_name_is_a_user_failure(docker_kit: DockerKit) -> None:
    ended = ran(docker_kit, "true", image="Not/An//Image")
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, IMAGE_REASON)


def test_unreachable_registry_is_a_system_failure_after_three_tries(
    docker_kit: DockerKit,
) -> None:
    ended = ran(docker_kit, "true", image="127.0.0.1:1/some/image:1")
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, REGISTRY)
    assert ended.message is not None
    assert ended.message.startswith("pull: ")
    assert "tried 3 times" in ended.message


def test_failing_registry_is_a_system_failure(docker_kit: DockerKit, web: Web) -> None:
    web.route = lambda request: Answer(503)
    ended = ran(docker_kit, "true", image=f"{web.address}/some/image:1")
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, REGISTRY)


def test_image_unknown_to_the_registry_is_a_user_failure(docker_kit: DockerKit, web: Web) -> None:
    Registry(web, "known/image")
    ended = ran(docker_kit, "true", image=f"{web.address}/unknown/image:1")
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, IMAGE_REASON)


def test_unauthorized_image_is_a_user_failure(docker_kit: DockerKit, web: Web) -> None:
    web.route = lambda request: Answer(401, b"", {"Www-Authenticate": 'Basic realm="closed"'})
    ended = ran(docker_kit, "true", image=f"{web.address}/closed/image:1")
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, IMAGE_REASON)


def test_pull_is_reported_to_and_shared_by_all_waiting_attempts(
    docker_kit: DockerKit, web: Web
) -> None:
    registry = Registry(web, f"pulled/{uuid.uuid4().hex}")
    registry.may_send.clear()
    launches = [docker_kit.launch("/nothing", image=registry.image) for _ in range(3)]
    try:
        for launch in launches:
            docker_kit.driver.start(launch)
            docker_kit.events.phase(launch.uid, Phase.PULLING)
        registry.may_send.set()
        for launch in launches:
            ended = docker_kit.events.ended(launch.uid)
            assert (ended.exit_code, ended.reason) == (127, COMMAND), ended
        layers = [r for r in web.requests if r.path.endswith(registry.layer_digest)]
        assert len(layers) == 1
    finally:
        for launch in launches:
            docker_kit.driver.remove(launch.uid)
        until(lambda: not list(docker_kit.driver.find()))
        docker_kit.outside.remove_image(registry.image, force=True)


def test_stop_during_a_pull_ends_the_attempt_before_creation(
    docker_kit: DockerKit, web: Web
) -> None:
    registry = Registry(web, f"slow/{uuid.uuid4().hex}")
    registry.may_send.clear()
    launch = docker_kit.launch("/nothing", image=registry.image)
    try:
        docker_kit.driver.start(launch)
        docker_kit.events.building(launch.uid)
        docker_kit.driver.stop(launch.uid, grace_seconds=60, force=False)
        ended = docker_kit.events.ended(launch.uid)
        assert (ended.failure_kind, ended.reason, ended.started_at) == (None, STOPPED, None)
        assert ended.never_created
    finally:
        registry.may_send.set()
    assert list(docker_kit.driver.find()) == []


# ----------------------------------------------------------------------------- refusals


def test_unknown_user_is_a_user_failure(docker_kit: DockerKit) -> None:
    ended = ran(docker_kit, "true", user="nobody-here")
    assert not ended.never_created
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, SPEC)


def test_memory_below_the_engine_minimum_is_a_user_failure(docker_kit: DockerKit) -> None:
    ended = ran(docker_kit, "true", resources={"memory_mib": 1})
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, SPEC)


def test_folder_as_a_command_cannot_be_executed(docker_kit: DockerKit) -> None:
    ended = ran(docker_kit, "/tmp")
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (126, FailureKind.USER, COMMAND)


# ----------------------------------------------------------------------------- adoption


def test_container_that_was_created_but_not_started_is_started_once(docker_kit: DockerKit) -> None:
    launch = docker_kit.launch("echo", "hello")
    labels = {
        "cellrun.installation": docker_kit.installation,
        "cellrun.cell": "cell-1",
        "cellrun.attempt": launch.uid,
    }
    body = {"Image": IMAGE, "Cmd": ["echo", "hello"], "Labels": labels, "NetworkDisabled": True}
    docker_kit.outside.create_container_from_config(body, f"cellrun-{launch.uid}")
    docker_kit.driver.adopt(launch)
    assert docker_kit.events.ended(launch.uid).exit_code == 0
    assert docker_kit.starts(launch.uid) == 1


def test_container_is_adopted_by_name_after_the_home_was_lost(
    docker_kit: DockerKit,
) -> None:
    launch = docker_kit.launch("sh", "-c", "echo hello; sleep 1; exit 3")
    docker_kit.driver.start(launch)
    docker_kit.events.started(launch.uid)
    docker_kit.home = docker_kit.home.with_name("another")
    docker_kit.begin_again()
    docker_kit.driver.start(launch)
    assert docker_kit.events.ended(launch.uid).exit_code == 3
    assert docker_kit.starts(launch.uid) == 1
    assert docker_kit.log(launch.uid) == "hello\n"


# ----------------------------------------------------------------------------- an engine that goes


@pytest.fixture
def cable(
    docker_kit: DockerKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cable]:
    """The driver speaks to the engine through a cable."""
    path = Path(f"/tmp/cellrun-cable-{uuid.uuid4().hex[:8]}")  # a socket's path is a short one
    cable = Cable(str(path), find_socket())
    with monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{path}")
        docker_kit.begin_again()
        list(docker_kit.driver.find())
        try:
            yield cable
        finally:
            patch.undo()
            docker_kit.begin_again()
            cable.close()
            path.unlink()


def test_engine_outage_loses_no_output_and_no_exit_code(
    docker_kit: DockerKit, cable: Cable
) -> None:
    script = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.3; done; exit 4"
    launch = docker_kit.launch("sh", "-c", script)
    docker_kit.driver.start(launch)
    until(lambda: docker_kit.log(launch.uid).startswith("1\n2\n"))
    cable.pull()
    with pytest.raises(EngineAway):
        list(docker_kit.driver.find())
    cable.plug()
    assert docker_kit.events.ended(launch.uid).exit_code == 4
    assert docker_kit.log(launch.uid) == "1\n2\n3\n4\n5\n6\n7\n8\n"


def test_adopted_attempt_is_not_reported_while_the_engine_is_unreachable(
    docker_kit: DockerKit, cable: Cable
) -> None:
    launch = docker_kit.launch("sh", "-c", "sleep 1; exit 4")
    docker_kit.driver.start(launch)
    docker_kit.events.started(launch.uid)
    cable.pull()
    docker_kit.begin_again()
    docker_kit.driver.adopt(launch)
    docker_kit.driver.stop("somebody", grace_seconds=0, force=True)
    until(lambda: docker_kit.inspect(launch.uid)["State"]["Status"] == "exited")
    assert docker_kit.events.of(launch.uid) == []
    cable.plug()
    assert docker_kit.events.ended(launch.uid).exit_code == 4


def test_unreachable_engine_fails_the_start_after_three_tries(
    docker_kit: DockerKit, cable: Cable
) -> None:
    cable.pull()
    launch = docker_kit.launch("true")
    docker_kit.driver.start(launch)
    ended = docker_kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, ENGINE)
    assert ended.message is not None
    assert "tried 3 times" in ended.message
    assert ended.never_created


def test_stop_missed_by_the_engine_is_repeated(docker_kit: DockerKit, cable: Cable) -> None:
    launch = docker_kit.launch("sleep", "300")
    docker_kit.driver.start(launch)
    docker_kit.events.started(launch.uid)
    cable.pull()
    docker_kit.driver.stop(launch.uid, grace_seconds=0, force=True)
    docker_kit.driver.stop(launch.uid, grace_seconds=0, force=True)
    cable.plug()
    ended = docker_kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.reason) == (137, STOPPED)
    kinds = [type(e) for e in docker_kit.events.of(launch.uid) if not isinstance(e, BuildingEvent)]
    assert kinds == [StartedEvent, EndedEvent]
