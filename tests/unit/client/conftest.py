"""What the client's tests share: a stub server, and an environment that names it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellrun.api.session import Session
from cellrun.settings import ClientSettings
from tests.unit.client.stub_server import Api


@pytest.fixture
def api() -> Iterator[Api]:
    """A server that answers 404 until a test sets answers."""
    server = Api()
    yield server
    server.close()


@pytest.fixture
def session(api: Api) -> Iterator[Session]:
    """A session with that server."""
    with Session(ClientSettings(api.url, "secret-token")) as opened:
        yield opened


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, api: Api) -> Api:
    """The command's environment: a home of its own, the server's address, a token."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("CELLRUN_URL", api.url)
    monkeypatch.setenv("CELLRUN_TOKEN", "secret-token")
    return api
