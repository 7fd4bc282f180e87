"""A cell sends the registry login of a task to its own registry, and to no other."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controlplane.contract.messages.launch_context import Registry
from controlplane.contract.messages.reports import IMAGE
from controlplane.contract.states import FailureKind
from tests.conformance.kit import DockerKit
from tests.conformance.test_secrets import Briefer, begin_again
from tests.harness.web import Answer, Request, Web
from workers.attempt.events import EndedEvent
from workers.attempt.outcome import SECRET

pytestmark = pytest.mark.engine

USER, PASSWORD = "user-1", "password-of-user-1"


@contextmanager
def closed_registry() -> Iterator[Web]:
    """A registry that answers every request with a demand for a login."""

    def refuse(request: Request) -> Answer:
        challenge = {"Www-Authenticate": 'Basic realm="closed"'}
        return Answer(401, b"{}", {"Docker-Distribution-Api-Version": "registry/2.0", **challenge})

    with Web() as registry:
        registry.route = refuse
        yield registry


def run_with_login(kit: DockerKit, web: Web, server: str, image: str) -> EndedEvent:
    """Run `image` with a login to `server`."""
    briefer = Briefer(web)
    briefer.secrets = {}
    briefer.more = {"registry": Registry(USER, PASSWORD, server)}
    begin_again(kit, briefer)
    launch = kit.launch("true", image=image, registry_secret="hub")
    kit.driver.start(launch)
    return kit.events.ended(launch.uid)


def logins_at(registry: Web) -> set[str]:
    """The values of the Authorization headers that reached the registry."""
    found = [request.headers.get("Authorization") for request in registry.requests]
    return {value for value in found if value is not None}


def test_login_is_not_sent_to_another_registry(docker_kit: DockerKit, web: Web) -> None:
    with closed_registry() as registry, closed_registry() as other:
        image = f"{registry.address}/team/tool:1"
        for server in ("docker.io", other.address, "127.0.0.1"):
            ended = run_with_login(docker_kit, web, server, image)
            assert (ended.failure_kind, ended.reason) == (FailureKind.USER, SECRET), ended
            assert ended.message == (
                f"registry_secret: hub is a login to {server}, but {image} is an image of"
                f" {registry.address}"
            )
            assert registry.requests == other.requests == []


def test_login_is_sent_to_its_own_registry(docker_kit: DockerKit, web: Web) -> None:
    with closed_registry() as registry:
        image = f"{registry.address}/team/tool:1"
        ended = run_with_login(docker_kit, web, registry.address, image)
        assert (ended.failure_kind, ended.reason) == (FailureKind.USER, IMAGE), ended
        basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        assert logins_at(registry) == {f"Basic {basic}"}
