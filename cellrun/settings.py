"""Read the API's URL and token from the environment or the file of `cellrun login`."""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cellrun.errors import BadInput, NotConfigured

PROFILE = "CELLRUN_PROFILE"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """An API's URL, without a trailing slash, and a token."""

    url: str
    token: str = field(repr=False)


def settings_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file that `cellrun login` writes."""
    home = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "cellrun" / "config.toml"


def load_settings(
    environ: Mapping[str, str] = os.environ, *, is_operator: bool = False
) -> ClientSettings:
    """Return the current settings. Raise NotConfigured for a missing one, BadInput.

    The profile in CELLRUN_PROFILE applies as a whole; without one, CELLRUN_URL and CELLRUN_TOKEN
    override what is stored. `is_operator`: with the token in CELLRUN_OPERATOR_TOKEN, if it and
    CELLRUN_URL are set.
    """
    profile = environ.get(PROFILE, "")
    if profile:
        return _load_profile(profile, environ)
    stored = _read(settings_path(environ)).get("", {})
    url = environ.get("CELLRUN_URL") or stored.get("url")
    token = _given_token(environ) or stored.get("token")
    if is_operator and environ.get("CELLRUN_URL"):
        token = environ.get("CELLRUN_OPERATOR_TOKEN") or token
    if not url:
        raise NotConfigured("no server is configured: run `cellrun login URL`, or set CELLRUN_URL")
    if not token:
        raise NotConfigured(f"no token for {url}: run `cellrun login {url}`, or set CELLRUN_TOKEN")
    return ClientSettings(check_url(url), token)


def load_profiles(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the URLs of the stored profiles by name; "" is that of commands without a profile."""
    return {name: values.get("url", "") for name, values in _read(settings_path(environ)).items()}


def store_settings(
    settings: ClientSettings, environ: Mapping[str, str] = os.environ, *, profile: str = ""
) -> Path:
    """Write a profile to the file, readable by its owner only, and return its path."""
    path = settings_path(environ)
    stored = {**_read(path), check_profile(profile): asdict(settings)}
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write("\n".join(_table(name, stored[name]) for name in sorted(stored)))
    draft.replace(path)
    return path


def check_profile(name: str) -> str:
    """Return the name of a profile, or "" for none. Raise BadInput."""
    if name and not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} is no name of a profile: use letters, digits, '.', '_' and '-'")
    return name


def check_url(url: str) -> str:
    """Return `url` without a trailing slash. Raise BadInput unless it is http or https."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise BadInput(f"{url!r} is not a URL such as http://127.0.0.1:8000")
    return url.rstrip("/")


def _load_profile(name: str, environ: Mapping[str, str]) -> ClientSettings:
    stored = _read(settings_path(environ))
    values = stored.get(check_profile(name), {})
    if not values.get("url") or not values.get("token"):
        known = ", ".join(sorted(filter(None, stored))) or "none"
        raise NotConfigured(
            f"no profile {name} is stored (profiles: {known}): run"
            f" `cellrun --profile {name} login URL`"
        )
    return ClientSettings(check_url(values["url"]), values["token"])


def _table(name: str, values: Mapping[str, str]) -> str:
    # A JSON string is a TOML string, except for DEL, which no URL, token or name contains.
    head = f"[profiles.{json.dumps(name)}]\n" if name else ""
    return head + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def _given_token(environ: Mapping[str, str]) -> str | None:
    path = environ.get("CELLRUN_TOKEN_FILE")
    if not path:
        return environ.get("CELLRUN_TOKEN")
    if environ.get("CELLRUN_TOKEN"):
        raise BadInput("CELLRUN_TOKEN: set CELLRUN_TOKEN or CELLRUN_TOKEN_FILE, not both")
    try:
        text = Path(path).expanduser().read_text()
    except (OSError, ValueError) as fault:
        raise BadInput(f"CELLRUN_TOKEN_FILE: {path} cannot be used: {fault}") from None
    token = text.removesuffix("\n").removesuffix("\r")
    if not token or "\n" in token:
        raise BadInput(f"CELLRUN_TOKEN_FILE: {path} cannot be used: it does not hold one line")
    return token


def _read(path: Path) -> dict[str, dict[str, str]]:
    """Return the entries of the profiles by name."""
    try:
        stored = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as fault:
        raise BadInput(
            f"{path} cannot be read: {fault}; remove it and run `cellrun login`"
        ) from None
    profiles = stored.get("profiles")
    found = {"": _texts(stored)} | {
        name: _texts(values)
        for name, values in (profiles.items() if isinstance(profiles, dict) else ())
        if isinstance(values, dict)
    }
    return {name: values for name, values in found.items() if values}


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in values.items() if isinstance(value, str)}
