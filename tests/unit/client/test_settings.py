"""Where the API is: the file of `cellrun login`, and the environment that wins over it."""

import stat
from pathlib import Path

import pytest

from cellrun.errors import BadInput, NotConfigured
from cellrun.settings import (
    ClientSettings,
    check_url,
    load_profiles,
    load_settings,
    settings_path,
    store_settings,
)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_stored_settings_are_loaded_from_a_private_file(environ: dict[str, str]) -> None:
    settings = ClientSettings("http://127.0.0.1:8000", 'to"ken\\')
    path = store_settings(settings, environ)
    assert path == settings_path(environ)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert load_settings(environ) == settings


def test_second_store_replaces_the_file_and_restores_its_mode(environ: dict[str, str]) -> None:
    store_settings(ClientSettings("http://one:1", "1"), environ)
    settings_path(environ).chmod(0o644)
    path = store_settings(ClientSettings("http://two:2", "2"), environ)
    assert load_settings(environ) == ClientSettings("http://two:2", "2")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_environment_overrides_stored_settings_one_by_one(environ: dict[str, str]) -> None:
    store_settings(ClientSettings("http://stored:1", "stored"), environ)
    assert load_settings({**environ, "CELLRUN_TOKEN": "mine"}) == ClientSettings(
        "http://stored:1", "mine"
    )
    assert load_settings({**environ, "CELLRUN_URL": "http://mine:2/"}).url == "http://mine:2"


def test_missing_settings_error_has_a_remedy(environ: dict[str, str]) -> None:
    with pytest.raises(NotConfigured, match="cellrun login URL"):
        load_settings(environ)
    with pytest.raises(NotConfigured, match="no token for http://h"):
        load_settings({**environ, "CELLRUN_URL": "http://h"})


def test_malformed_file_is_named(environ: dict[str, str]) -> None:
    path = settings_path(environ)
    path.parent.mkdir(parents=True)
    path.write_text("url = ")
    with pytest.raises(BadInput, match=str(path)):
        load_settings(environ)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://host", "http://", "http://h/?a=b"])
def test_malformed_address_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="is not a URL"):
        check_url(url)


def test_token_is_not_in_the_repr() -> None:
    assert "geheim" not in repr(ClientSettings("http://h", "geheim"))


def test_token_may_be_in_a_file(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("cr_mine\n")
    here = {**environ, "CELLRUN_URL": "http://h", "CELLRUN_TOKEN_FILE": str(tmp_path / "token")}
    assert load_settings(here) == ClientSettings("http://h", "cr_mine")
    with pytest.raises(BadInput, match="CELLRUN_TOKEN_FILE, not both"):
        load_settings({**here, "CELLRUN_TOKEN": "other"})
    with pytest.raises(BadInput, match="CELLRUN_TOKEN_FILE: /nonexistent/token cannot be used"):
        load_settings({**here, "CELLRUN_TOKEN_FILE": "/nonexistent/token"})


def test_profiles_are_stored_beside_each_other(environ: dict[str, str]) -> None:
    plain, other = ClientSettings("http://one:1", "1"), ClientSettings("http://two:2", "2")
    store_settings(other, environ, profile="far.away")
    store_settings(plain, environ)
    assert load_settings(environ) == plain
    assert load_settings({**environ, "CELLRUN_PROFILE": "far.away"}) == other
    changed = ClientSettings("http://three:3", "3")
    store_settings(changed, environ, profile="far.away")
    assert load_settings({**environ, "CELLRUN_PROFILE": "far.away"}) == changed
    assert load_profiles(environ) == {"": "http://one:1", "far.away": "http://three:3"}
    assert settings_path(environ).stat().st_mode & 0o777 == 0o600


def test_a_profile_applies_instead_of_the_environment(environ: dict[str, str]) -> None:
    stored = ClientSettings("http://two:2", "2")
    store_settings(stored, environ, profile="two")
    given = {"CELLRUN_URL": "http://given:9", "CELLRUN_TOKEN": "x", "CELLRUN_OPERATOR_TOKEN": "y"}
    chosen = {**environ, **given, "CELLRUN_PROFILE": "two"}
    assert load_settings(chosen, is_operator=True) == stored


def test_an_unknown_profile_is_refused_with_the_known_ones(environ: dict[str, str]) -> None:
    store_settings(ClientSettings("http://two:2", "2"), environ, profile="two")
    with pytest.raises(NotConfigured, match=r"no profile tow .*profiles: two.*--profile tow login"):
        load_settings({**environ, "CELLRUN_PROFILE": "tow"})
    for name in ("../x", "a b", "-", "x" * 64):
        with pytest.raises(BadInput, match="no name of a profile"):
            store_settings(ClientSettings("http://two:2", "2"), environ, profile=name)
