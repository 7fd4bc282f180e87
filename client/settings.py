"""Read the API's URL and token from the environment or the file of `cellrun login`."""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from client.errors import BadInput, NotConfigured


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

    `is_operator`: with the token in CELLRUN_OPERATOR_TOKEN, if it and CELLRUN_URL are set.
    """
    stored = _read(settings_path(environ))
    url = environ.get("CELLRUN_URL") or stored.get("url")
    token = _given_token(environ) or stored.get("token")
    if is_operator and environ.get("CELLRUN_URL"):
        token = environ.get("CELLRUN_OPERATOR_TOKEN") or token
    if not url:
        raise NotConfigured("no server is configured: run `cellrun login URL`, or set CELLRUN_URL")
    if not token:
        raise NotConfigured(f"no token for {url}: run `cellrun login {url}`, or set CELLRUN_TOKEN")
    return ClientSettings(check_url(url), token)


def store_settings(settings: ClientSettings, environ: Mapping[str, str] = os.environ) -> Path:
    """Write the file, readable by its owner only, and return its path."""
    path = settings_path(environ)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # A JSON string is a TOML string, except for DEL, which no URL or token contains.
    text = f"url = {json.dumps(settings.url)}\ntoken = {json.dumps(settings.token)}\n"
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
    return path


def check_url(url: str) -> str:
    """Return `url` without a trailing slash. Raise BadInput unless it is http or https."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise BadInput(f"{url!r} is not a URL such as http://127.0.0.1:8000")
    return url.rstrip("/")


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


def _read(path: Path) -> dict[str, str]:
    try:
        stored = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as fault:
        raise BadInput(
            f"{path} cannot be read: {fault}; remove it and run `cellrun login`"
        ) from None
    return {name: value for name, value in stored.items() if isinstance(value, str)}
