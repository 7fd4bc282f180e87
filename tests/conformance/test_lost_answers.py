"""The engine has done a call, and its answer is lost: nothing is done a second time."""

from collections.abc import Callable
from typing import Any

import docker
import pytest
import requests

from tests.conformance.kit import INSTALLATION, DockerKit

pytestmark = pytest.mark.engine


def lose_answers(
    monkeypatch: pytest.MonkeyPatch, call: str, *, after: Callable[[Any, str], None]
) -> list[int]:
    """The connection breaks once `call` was done and `after` has run; how often it was done."""
    real = getattr(docker.APIClient, call)
    done: list[int] = []

    def lose(client: Any, *given: Any, **more: Any) -> Any:
        answer = real(client, *given, **more)
        done.append(1)
        if len(done) == 1:
            after(client, given[0])
            raise requests.ConnectionError("the connection was reset")
        return answer

    monkeypatch.setattr(docker.APIClient, call, lose)
    return done


def test_start_with_a_lost_answer_is_not_repeated_after_the_end(
    docker_kit: DockerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(client: Any, container: str) -> None:
        client.wait(container)

    done = lose_answers(monkeypatch, "start", after=wait)
    launch = docker_kit.launch(*docker_kit.exits(5))
    docker_kit.driver.start(launch)
    assert docker_kit.events.ended(launch.uid).exit_code == 5
    assert (len(done), docker_kit.starts(launch.uid)) == (1, 1)


def test_create_with_a_lost_answer_leaves_one_container_started_once(
    docker_kit: DockerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_answers(monkeypatch, "create_container_from_config", after=lambda client, body: None)
    launch = docker_kit.launch(*docker_kit.exits(6))
    docker_kit.driver.start(launch)
    assert docker_kit.events.ended(launch.uid).exit_code == 6
    assert docker_kit.starts(launch.uid) == 1


def test_ended_container_found_by_name_is_not_started_again(
    docker_kit: DockerKit,
) -> None:
    """The cell knows nothing of it: its home and journal are lost, and the order came again."""
    launch = docker_kit.launch(*docker_kit.exits(7))
    labels = {
        "cellrun.attempt": launch.uid,
        "cellrun.installation": docker_kit.installation,
        "cellrun.cell": "cell-1",
    }
    assert docker_kit.installation.startswith(INSTALLATION)
    outside = docker_kit.outside
    made = outside.create_container(
        launch.spec.image,
        list(launch.spec.command),
        name=f"cellrun-{launch.uid}",
        labels=labels,
        host_config=outside.create_host_config(network_mode="none"),
    )
    outside.start(made["Id"])
    outside.wait(made["Id"])
    docker_kit.driver.start(launch)
    ended = docker_kit.events.ended(launch.uid)
    assert (ended.exit_code, docker_kit.starts(launch.uid)) == (7, 1)
