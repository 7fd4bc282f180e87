"""Where the API is: the file of `cellrun login`, and the environment that wins over it."""

import stat
from pathlib import Path

import pytest

from client.errors import BadInput, NotConfigured
from client.settings import ClientSettings, check_url, load_settings, settings_path, store_settings


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_what_was_stored_is_loaded_and_nobody_else_may_read_it(environ: dict[str, str]) -> None:
    settings = ClientSettings("http://127.0.0.1:8000", 'to"ken\\')
    path = store_settings(settings, environ)
    assert path == settings_path(environ)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert load_settings(environ) == settings


def test_storing_again_replaces_and_keeps_the_mode(environ: dict[str, str]) -> None:
    store_settings(ClientSettings("http://one:1", "1"), environ)
    settings_path(environ).chmod(0o644)
    path = store_settings(ClientSettings("http://two:2", "2"), environ)
    assert load_settings(environ) == ClientSettings("http://two:2", "2")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_the_environment_wins_value_by_value(environ: dict[str, str]) -> None:
    store_settings(ClientSettings("http://stored:1", "stored"), environ)
    assert load_settings({**environ, "CELLRUN_TOKEN": "mine"}) == ClientSettings(
        "http://stored:1", "mine"
    )
    assert load_settings({**environ, "CELLRUN_URL": "http://mine:2/"}).url == "http://mine:2"


def test_without_an_address_it_says_what_to_do(environ: dict[str, str]) -> None:
    with pytest.raises(NotConfigured, match="cellrun login URL"):
        load_settings(environ)
    with pytest.raises(NotConfigured, match="no token for http://h"):
        load_settings({**environ, "CELLRUN_URL": "http://h"})


def test_a_broken_file_is_named(environ: dict[str, str]) -> None:
    path = settings_path(environ)
    path.parent.mkdir(parents=True)
    path.write_text("url = ")
    with pytest.raises(BadInput, match=str(path)):
        load_settings(environ)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://host", "http://", "http://h/?a=b"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="is not an address"):
        check_url(url)


def test_a_token_is_not_shown() -> None:
    assert "geheim" not in repr(ClientSettings("http://h", "geheim"))
