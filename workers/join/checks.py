"""Check what a cell needs on this host; each problem is a sentence with a remedy."""

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import redis
import requests
from docker.errors import DockerException

from controlplane.contract.wire.join_token import JoinToken
from workers import clock
from workers.control_api import ControlPlaneRefused, ControlPlaneUnavailable, Web
from workers.drivers.docker.connection import connect, engine_address

ANSWER_SECONDS = 5.0

# Web refuses signed requests whose time differs from its clock by more than 300 s.
MAX_CLOCK_DIFFERENCE_SECONDS = 60.0
# From here on a cell warns of its clock; the header of the response has whole seconds.
NOTED_CLOCK_DIFFERENCE_SECONDS = 3.0

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(slots=True)
class Findings:
    """The results of the checks. A cell joins if there are no problems."""

    passed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def check_host(*, address: str, token: JoinToken, driver: str) -> Findings:
    """Check engine, web, clock, key and broker."""
    found = Findings()
    if driver == "docker":
        _check_engine(found)
    if _check_web(found, address):
        _check_key(found, address, token)
    _check_broker(found, address, token)
    return found


def _check_engine(found: Findings) -> None:
    address = engine_address()
    try:
        if address.startswith("unix://"):
            # The error of the system names the cause; that of the SDK leaves the socket open.
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(ANSWER_SECONDS)
                line.connect(address.removeprefix("unix://"))
        client = connect(call_seconds=ANSWER_SECONDS)
        version = client.version()
        client.close()
    except (DockerException, requests.RequestException, OSError) as error:
        found.problems.append(f"engine: {_engine_problem(address, str(error))}")
        return
    found.passed.append(f"engine: version {version.get('Version', 'unknown')}")


def _engine_problem(address: str, text: str) -> str:
    if "Permission denied" in text:
        return (
            f"this user may not use {address}: add it to the group that owns the"
            " socket (usually docker), or run this command as root"
        )
    if "No such file" in text or "Connection refused" in text:
        return (
            f"no container engine answers at {address}: install and start Docker"
            " Engine or Podman, or set DOCKER_HOST"
        )
    return f"{address} does not answer as expected: {text}"


def _check_web(found: Findings, address: str) -> bool:
    """Check web and the clock. Return whether signed requests make sense."""
    session = requests.Session()
    session.trust_env = False  # as the cell does
    try:
        answer = session.get(f"{address}/healthz", timeout=ANSWER_SECONDS, allow_redirects=False)
    except requests.RequestException as error:
        found.problems.append(f"web: {_connection_problem(address, error)}")
        return False
    finally:
        session.close()
    now = clock.wall_seconds()
    if answer.is_redirect:
        target = answer.headers.get("Location", "").removesuffix("/healthz")
        found.problems.append(f"web: {address} redirects to {target}: use that address")
        return False
    if answer.status_code == 400:
        found.problems.append(
            f"web: it refuses the host name of {address}: add the name to CELLRUN_ALLOWED_HOSTS on"
            " the control plane, or use the address in CELLRUN_PUBLIC_URL"
        )
        return False
    if answer.status_code != 200:
        found.problems.append(
            f"web: {address}/healthz answers with status {answer.status_code}: check that it is the"
            " address of Cellrun's web"
        )
        return False
    found.passed.append(f"web: {address} answers")
    return _check_clock(found, answer.headers.get("Date"), now)


def _connection_problem(address: str, error: requests.RequestException) -> str:
    host, text = urlsplit(address).hostname, str(error)
    if isinstance(error, requests.exceptions.SSLError):
        return f"the certificate of {address} is not trusted on this host: {_last_words(text)}"
    if isinstance(error, requests.Timeout):
        return (
            f"{address} does not answer within {ANSWER_SECONDS:g} s: a firewall between this host"
            " and web may drop the connection"
        )
    if "resolve" in text or "Name or service" in text:
        return f"the name {host} has no address on this host: check the name and the DNS"
    if "refused" in text:
        return f"{address} refuses the connection: check the port, and that web runs"
    return f"{address} cannot be reached: {_last_words(text)}"


def _last_words(text: str) -> str:
    return text.rpartition(": ")[2].rstrip("')")


def _check_clock(found: Findings, date: str | None, now: float) -> bool:
    try:
        theirs = parsedate_to_datetime(date or "").timestamp() + 0.5  # whole seconds
    except ValueError:
        found.notes.append("clock: not compared, since web's response has no date")
        return True
    ahead = now - theirs
    text = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} web's clock"
    if abs(ahead) > MAX_CLOCK_DIFFERENCE_SECONDS:
        found.problems.append(
            f"clock: this host is {text}: synchronize both (chrony, systemd-timesyncd)"
        )
        return False
    if abs(ahead) > NOTED_CLOCK_DIFFERENCE_SECONDS:
        found.notes.append(f"clock: this host is {text}; synchronize both")
    else:
        found.passed.append("clock: as web's")
    return True


def _check_key(found: Findings, address: str, token: JoinToken) -> None:
    web = Web(control_url=address, cell=token.cell, key=token.key)
    try:
        web.check_key()
        found.passed.append(f"key: web accepts the key of {token.cell}")
    except ControlPlaneRefused as error:
        found.problems.append(f"key: web refused a signed request: {error}")
    except ControlPlaneUnavailable as error:
        if "status 401" in str(error):
            found.problems.append(
                f"key: web does not accept the key of {token.cell}: it was renewed or revoked since"
                " the token was printed; print a new one with `manage.py enroll_cell"
                f" {token.cell} --join-token`"
            )
        else:
            found.problems.append(f"key: web did not check it: {error}")
    finally:
        web.close()


def _check_broker(found: Findings, address: str, token: JoinToken) -> None:
    place = broker_place(token.broker_url)
    for problem in _broker_problems(address, token.broker_url, place, _ping):
        found.problems.append(f"broker: {problem}")
        return
    found.passed.append(f"broker: Redis at {place} answers")


def broker_place(url: str) -> str:
    """Return host and port, or the path of the socket, without the login."""
    parts = urlsplit(url)
    if not parts.hostname:
        return parts.path
    return f"{parts.hostname}:{parts.port or 6379}"


def _ping(url: str) -> None:
    # The scheme of a socket is Celery's.
    client = redis.Redis.from_url(
        url.replace("redis+socket:", "unix:", 1),
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
    )
    with client:
        client.ping()


def _broker_problems(
    address: str, url: str, place: str, ping: Callable[[str], None]
) -> Iterator[str]:
    """Yield what is wrong; nothing if Redis answers and accepts the login."""
    reprint = "print a new token with `manage.py enroll_cell NAME --join-token --broker-url URL`"
    is_local = urlsplit(url).hostname in LOOPBACK
    if is_local and urlsplit(address).hostname not in LOOPBACK:
        yield (
            f"the token names Redis at {place}, which is this host, but web is elsewhere:"
            f" {reprint}, with the address of Redis for this host"
        )
        return
    try:
        ping(url)
    except redis.exceptions.NoPermissionError:
        return  # the login is valid, and limited to what a cell needs
    except redis.exceptions.AuthenticationError:
        yield f"Redis at {place} refuses the login in the token: {reprint}"
    except redis.exceptions.TimeoutError:
        yield (
            f"Redis at {place} does not answer within {ANSWER_SECONDS:g} s: a firewall may drop the"
            " connection, or it expects TLS (rediss://)"
        )
    except (redis.exceptions.RedisError, OSError, ValueError) as error:
        if "refused" in str(error):
            yield f"Redis at {place} refuses the connection: check its port and that it runs"
        elif "resolve" in str(error) or "not known" in str(error):
            yield f"the name of Redis, {place}, has no address on this host: check the DNS"
        else:
            yield f"Redis at {place} cannot be used: {error}"
