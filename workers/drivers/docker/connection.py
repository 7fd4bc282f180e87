"""Connect to the engine by the Docker SDK, and translate the SDK's exceptions."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import docker
import requests
import urllib3
from docker.utils import kwargs_from_env

from workers.attempt.runtime import EngineAway, EngineError, NoSuchContainer

SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")
USER_SOCKETS = ("docker.sock", "podman/podman.sock")  # under XDG_RUNTIME_DIR
CALL_SECONDS = 60.0  # a create or start takes about a second under load


class EngineTimeout(EngineAway):
    """The engine did not answer within the timeout of the call."""


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate exceptions of the Docker SDK into EngineError and EngineAway."""
    try:
        yield
    except docker.errors.NotFound as error:
        raise NoSuchContainer(_error_text(error), 404) from error
    except docker.errors.APIError as error:
        raise EngineError(_error_text(error), error.status_code) from error
    except (
        docker.errors.DockerException,
        requests.RequestException,
        urllib3.exceptions.HTTPError,
        OSError,
    ) as error:
        if "timed out" in str(error):
            raise EngineTimeout(str(error)) from error
        raise EngineAway(str(error)) from error


def _error_text(error: docker.errors.APIError) -> str:
    return str(error.explanation or error).strip()


def connect(call_seconds: float = CALL_SECONDS) -> docker.APIClient:
    """Return a client for DOCKER_HOST or the first usual socket. Raise DockerException."""
    options: dict[str, Any] = {**kwargs_from_env()}
    options.setdefault("base_url", f"unix://{find_socket()}")
    return docker.APIClient(
        version="auto", timeout=int(call_seconds), num_pools=64, max_pool_size=64, **options
    )


def engine_address() -> str:
    """Return the address that `connect` uses."""
    return os.environ.get("DOCKER_HOST") or f"unix://{find_socket()}"


def find_socket() -> str:
    """Return the path of the engine's socket; Docker's default if none exists."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = [f"{runtime}/{name}" for name in USER_SOCKETS] if runtime else []
    return next((path for path in (*SOCKETS, *own) if os.path.exists(path)), SOCKETS[0])
