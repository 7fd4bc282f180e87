"""Sessions and services: limits, health checks and ports, with every driver that runs programs."""

import http.client
import sys
from dataclasses import replace
from typing import Any

import pytest

from controlplane.contract.messages.health import HealthCheck
from controlplane.contract.states import FailureKind, Phase
from tests.conformance.kit import DockerKit, Kit, until
from workers.attempt.events import BuildingEvent, EndedEvent, Launch, StartedEvent
from workers.attempt.outcome import EXIT, HEALTH, IDLE, LIFETIME, TIMEOUT

QUICK: dict[str, Any] = {"interval_seconds": 0.1, "timeout_seconds": 5.0, "retries": 2}
SHORT: dict[str, Any] = {"stop_grace_seconds": 0.2}
READY = HealthCheck(("test", "-e", "ready"), start_period_seconds=300.0, **QUICK)
NEVER = HealthCheck(("test", "-e", "never"), start_period_seconds=1.0, **QUICK)


def served(kit: Kit, script: str, check: HealthCheck, **spec: Any) -> Launch:
    return kit.launch("sh", "-c", script, health_check=check, **SHORT, **spec)


def kinds(kit: Kit, uid: str) -> list[type]:
    return [type(event) for event in kit.events.of(uid) if not isinstance(event, BuildingEvent)]


# ----------------------------------------------------------------------------- limits


def test_idle_timeout_ends_the_attempt(real_kit: Kit) -> None:
    launch = real_kit.launch(*real_kit.obedient(), idle_timeout_seconds=2.0)
    real_kit.driver.start(launch)
    ended = real_kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (None, IDLE)
    assert ended.message == "idle for longer than idle_timeout_seconds"


@pytest.mark.parametrize(
    "script",
    ["while true; do echo x; sleep 0.2; done", "while true; do :; done"],
    ids=["writes", "computes"],
)
def test_writing_or_computing_attempt_is_not_idle(real_kit: Kit, script: str) -> None:
    limits: dict[str, Any] = {"idle_timeout_seconds": 2.0, "lifetime_seconds": 5.0}
    launch = real_kit.launch("sh", "-c", script, **limits, **SHORT)
    real_kit.driver.start(launch)
    assert real_kit.events.ended(launch.uid).reason == LIFETIME


def test_idle_and_lifetime_limits_continue_across_a_cell_restart(real_kit: Kit) -> None:
    idle = real_kit.launch(*real_kit.sleeps(300), idle_timeout_seconds=3.0, **SHORT)
    long = real_kit.launch(*real_kit.sleeps(300), lifetime_seconds=3.0, **SHORT)
    for launch in (idle, long):
        real_kit.driver.start(launch)
        real_kit.events.started(launch.uid)
    seen = real_kit.home / "work" / idle.uid / "activity.json"
    until(seen.exists)
    real_kit.begin_again()
    for launch in (idle, long):
        real_kit.driver.adopt(launch)
    assert real_kit.events.ended(idle.uid).reason == IDLE
    assert real_kit.events.ended(long.uid).reason == LIFETIME


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"lifetime_seconds": 0.5, "timeout_seconds": 1.0}, LIFETIME),
        ({"timeout_seconds": 0.5, "lifetime_seconds": 1.0}, TIMEOUT),
    ],
    ids=["lifetime first", "timeout first"],
)
def test_first_of_two_limits_is_the_reason_after_a_cell_restart(
    real_kit: Kit, limits: dict[str, Any], reason: str
) -> None:
    script = "trap 'sleep 0.8; echo both; sleep 2; exit 7' TERM; sleep 300 & wait"
    launch = real_kit.launch("sh", "-c", script, stop_grace_seconds=60, **limits)
    real_kit.driver.start(launch)
    until(lambda: "both" in real_kit.log(launch.uid))
    real_kit.begin_again()
    real_kit.driver.adopt(launch)
    ended = real_kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (7, None, reason)


def test_attempt_ignoring_the_lifetime_stop_is_killed_after_the_grace_period(kit: Kit) -> None:
    launch = kit.launch(*kit.deaf(300), lifetime_seconds=1.0, stop_grace_seconds=0.5)
    kit.driver.start(launch)
    ended = kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (137, None, LIFETIME)


# ----------------------------------------------------------------------------- health


def test_running_is_reported_only_after_the_health_check_passed(real_kit: Kit) -> None:
    script = "while [ ! -e go ]; do sleep 0.05; done; touch ready; sleep 300"
    check = replace(READY, command=("sh", "-c", "touch go; test -e ready"))
    launch = served(real_kit, script, check)
    real_kit.driver.start(launch)
    real_kit.events.started(launch.uid)
    phases = [e.phase for e in real_kit.events.of(launch.uid) if isinstance(e, BuildingEvent)]
    assert phases[-1] is Phase.CHECKING
    assert kinds(real_kit, launch.uid) == [StartedEvent]


def test_service_with_repeatedly_failing_check_is_ended(real_kit: Kit) -> None:
    launch = served(real_kit, "touch ready; sleep 1; rm ready; sleep 300 & wait", READY)
    real_kit.driver.start(launch)
    ended = real_kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, HEALTH)
    assert ended.message == "its health check failed 2 times in a row: exit status 1"
    assert ended.started_at == real_kit.events.started(launch.uid).at


def test_a_service_that_does_not_become_healthy_was_never_running(real_kit: Kit) -> None:
    launch = served(real_kit, "sleep 300 & wait", NEVER)
    real_kit.driver.start(launch)
    ended = real_kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, HEALTH)
    assert ended.message == "not healthy within 1 s: exit status 1"
    assert ended.started_at is None
    assert kinds(real_kit, launch.uid) == [EndedEvent]


def test_a_service_that_ends_before_it_is_healthy_was_never_running(real_kit: Kit) -> None:
    launch = served(real_kit, "exit 3", replace(NEVER, start_period_seconds=300.0))
    real_kit.driver.start(launch)
    ended = real_kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.reason, ended.started_at) == (3, EXIT, None)
    assert kinds(real_kit, launch.uid) == [EndedEvent]


def test_a_service_may_be_stopped_before_it_is_healthy(real_kit: Kit) -> None:
    launch = served(real_kit, "sleep 300 & wait", replace(NEVER, start_period_seconds=300.0))
    real_kit.driver.start(launch)
    until(
        lambda: any(
            isinstance(event, BuildingEvent) and event.phase is Phase.CHECKING
            for event in real_kit.events.of(launch.uid)
        )
    )
    real_kit.driver.stop(launch.uid, grace_seconds=0.0, force=True)
    assert real_kit.events.ended(launch.uid).reason == "stopped"


HANGING = replace(NEVER, command=("sleep", "300"), timeout_seconds=0.3, start_period_seconds=2.0)


def test_a_check_that_hangs_fails(real_kit: Kit) -> None:
    launch = served(real_kit, "sleep 300 & wait", replace(HANGING, start_period_seconds=0.1))
    real_kit.driver.start(launch)
    ended = real_kit.events.ended(launch.uid)
    assert ended.message == "not healthy within 0.1 s: not ended within 0.3 s"


@pytest.mark.engine
def test_hanging_check_in_a_container_is_not_run_concurrently(
    docker_kit: DockerKit,
) -> None:
    launch = served(docker_kit, "sleep 300 & wait", HANGING)
    docker_kit.driver.start(launch)
    docker_kit.events.building(launch.uid)
    most = 0

    def is_over() -> bool:
        nonlocal most
        found = [e for e in docker_kit.events.of(launch.uid) if isinstance(e, EndedEvent)]
        if not found and docker_kit.outside.containers(filters={"name": launch.uid}):
            most = max(most, len(docker_kit.inspect(launch.uid)["ExecIDs"] or ()))
        return bool(found)

    until(is_over)
    assert most == 1
    ended = docker_kit.events.ended(launch.uid)
    assert ended.message == "not healthy within 2 s: an earlier check has not ended"


def test_a_check_whose_command_does_not_exist_fails(real_kit: Kit) -> None:
    launch = served(real_kit, "sleep 300 & wait", replace(NEVER, command=("/no/such/program",)))
    real_kit.driver.start(launch)
    ended = real_kit.events.ended(launch.uid)
    assert ended.reason == HEALTH
    assert ended.message is not None
    assert "no such file" in ended.message.lower()


def test_adopted_healthy_service_is_running_without_a_new_check(real_kit: Kit) -> None:
    launch = served(real_kit, "touch ready; sleep 300 & wait", READY)
    real_kit.driver.start(launch)
    at = real_kit.events.started(launch.uid).at
    real_kit.begin_again()
    real_kit.driver.adopt(replace(launch, started_at=at))
    assert real_kit.events.started(launch.uid).at == at
    assert kinds(real_kit, launch.uid) == [StartedEvent]
    phases = [e.phase for e in real_kit.events.of(launch.uid) if isinstance(e, BuildingEvent)]
    assert Phase.CHECKING not in phases


def test_an_adopted_service_is_still_checked(real_kit: Kit) -> None:
    script = "touch ready; while [ ! -e gone ]; do sleep 0.1; done; rm ready; sleep 300 & wait"
    command = ("sh", "-c", "echo >> checked; test -e ready")
    launch = served(real_kit, script, replace(READY, command=command))
    real_kit.driver.start(launch)
    at = real_kit.events.started(launch.uid).at
    real_kit.begin_again()
    ending = replace(READY, command=("sh", "-c", "touch gone; test -e ready"))
    spec = replace(launch.spec, health_check=ending)
    real_kit.driver.adopt(replace(launch, spec=spec, started_at=at))
    ended = real_kit.events.ended(launch.uid)
    assert (ended.reason, ended.started_at) == (HEALTH, at)


# ----------------------------------------------------------------------------- ports


def server(kit: Kit, body: str) -> tuple[str, ...]:
    """Return a command that serves a file with `body` at its published port."""
    write = f"mkdir -p www; echo {body} > www/index.html; "
    if kit.name == "docker":
        return ("sh", "-c", write + "exec httpd -f -p $CELLRUN_PORT_MY_WEB -h www")
    serve = f"exec {sys.executable} -m http.server -d www $CELLRUN_PORT_MY_WEB"
    return ("sh", "-c", write + serve)


def fetch(address: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET", "/index.html")
    try:
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_published_port_is_reached_at_the_reported_address(real_kit: Kit) -> None:
    check = HealthCheck(port="my-web", path="/index.html", start_period_seconds=60.0, **QUICK)
    common: dict[str, Any] = {
        "ports": ("my-web", "other"),
        "network": "default",
        "health_check": check,
    }
    launches = [real_kit.launch(*server(real_kit, body), **common) for body in ("first", "second")]
    for launch in launches:
        real_kit.driver.start(launch)
    addresses = [real_kit.events.started(launch.uid).addresses or {} for launch in launches]
    assert [sorted(found) for found in addresses] == [["my-web", "other"]] * 2
    assert len({address for found in addresses for address in found.values()}) == 4
    assert [fetch(found["my-web"]) for found in addresses] == ["first\n", "second\n"]
    real_kit.begin_again()
    for launch in launches:
        real_kit.driver.adopt(launch)
    again = [real_kit.events.started(launch.uid).addresses for launch in launches]
    assert again == addresses


def test_an_http_check_that_is_answered_with_an_error_fails(real_kit: Kit) -> None:
    check = HealthCheck(port="my-web", path="/nothing", start_period_seconds=2.0, **QUICK)
    common: dict[str, Any] = {
        "ports": ("my-web",),
        "network": "default",
        "health_check": check,
        **SHORT,
    }
    launch = real_kit.launch(*server(real_kit, "here"), **common)
    real_kit.driver.start(launch)
    ended = real_kit.events.ended(launch.uid)
    assert ended.message == "not healthy within 2 s: GET /nothing: HTTP status 404"


@pytest.mark.engine
def test_requests_to_a_published_port_prevent_idleness(docker_kit: DockerKit) -> None:
    common: dict[str, Any] = {
        "ports": ("my-web",),
        "network": "default",
        "idle_timeout_seconds": 3.0,
        **SHORT,
    }
    launch = docker_kit.launch(*server(docker_kit, "here"), **common)
    docker_kit.driver.start(launch)
    address = (docker_kit.events.started(launch.uid).addresses or {})["my-web"]
    until(lambda: _answers(address))
    seen = docker_kit.home / "work" / launch.uid / "activity.json"
    until(seen.exists)
    contents = {seen.read_text()}

    def was_seen_often() -> bool:
        fetch(address)
        contents.add(seen.read_text())
        return len(contents) > 5

    until(was_seen_often)
    assert not [
        event for event in docker_kit.events.of(launch.uid) if isinstance(event, EndedEvent)
    ]
    assert docker_kit.events.ended(launch.uid).reason == IDLE


def _answers(address: str) -> bool:
    try:
        return fetch(address) == "here\n"
    except (OSError, http.client.HTTPException):
        return False
