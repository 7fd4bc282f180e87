"""The control plane's environment as one frozen, typed object, refused at start if it is wrong.

Every setting is read here and nowhere else. A CELLRUN_* name that nobody knows, and a value that
is not what its name expects, are refused by name, all of them at once.
"""

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from controlplane.contract.settings_names import unknown_names
from controlplane.domain.callbacks.addresses import Network
from controlplane.domain.callbacks.delivery import MAX_TRY_SECONDS

T = TypeVar("T")

MIN_SECRET_KEY_LENGTH = 32
"""Every cell's key is derived from it: 32 characters is what HMAC-SHA256 can make use of."""

PROCESSES = (
    "web",
    "placement",
    "convergence",
    "inbox",
    "callbacks",
    "beat",
    "flower",
    "command",
)


class InvalidSettings(Exception):
    """The environment cannot be used; the message has one line per setting that is wrong."""


@dataclass(frozen=True, slots=True)
class Database:
    """Where PostgreSQL is, as Django wants it."""

    name: str
    user: str
    password: str = field(repr=False)
    host: str
    port: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ControlPlaneSettings:
    """All settings of the control plane. Lengths of time are in seconds."""

    home: Path
    secret_key: str = field(repr=False)
    secret_key_fallbacks: tuple[str, ...] = field(repr=False)
    database: Database
    broker_url: str = field(repr=False)
    public_url: str
    flower_url: str
    artifact_root: Path
    allowed_hosts: tuple[str, ...]
    process: str
    debug: bool
    log_level: str
    advisory_locks: bool
    heartbeat_seconds: float
    lease_seconds: float
    start_seconds: float
    sync_seconds: float
    placement_interval_seconds: float
    convergence_interval_seconds: float
    one_off_scheduling_seconds: float
    max_tasks_per_job: int
    max_unfinished_tasks_per_user: int
    max_body_bytes: int
    max_artifact_mib: int
    audit_days: int
    callback_allowed_networks: tuple[Network, ...]
    callback_seconds: float
    callbacks_at_once: int
    callbacks_per_host: int


def load_settings(environ: Mapping[str, str]) -> ControlPlaneSettings:
    """Return the settings that `environ` describes, or raise InvalidSettings naming each fault.

    What the environment leaves open is taken from the stack that runs in CELLRUN_HOME, if one
    does: so `manage.py` in a shell speaks to the same database as `make up`.
    """
    faults = [f"{name}: unknown setting" for name in unknown_names(environ)]
    home = Path(environ.get("CELLRUN_HOME") or ".cellrun").absolute()
    reader = _Reader({**_running_stack(home), **environ}, faults)
    public_url = reader.read("CELLRUN_PUBLIC_URL", "http://127.0.0.1:8000", _http_url)
    if environ.get("CELLRUN_PROCESS") == "flower" and not environ.get("FLOWER_BASIC_AUTH"):
        faults.append("FLOWER_BASIC_AUTH: Flower needs a login, as user:password")
    heartbeat = reader.read("CELLRUN_HEARTBEAT_SECONDS", "5", _seconds)
    lease = reader.read("CELLRUN_LEASE_SECONDS", "30", _seconds)
    values: dict[str, Any] = {
        "home": home,
        "secret_key": reader.read("CELLRUN_SECRET_KEY", "", _secret_key),
        # Former keys: what they signed or sealed is still read.
        "secret_key_fallbacks": reader.read("CELLRUN_SECRET_KEY_FALLBACKS", "", _secret_keys),
        "database": reader.read("DATABASE_URL", "", _database),
        "broker_url": reader.read("CELERY_BROKER_URL", "", _redis_url),
        "public_url": public_url,
        # Where people's browsers find Flower; without it pages do not link there.
        "flower_url": reader.read("CELLRUN_FLOWER_URL", "", _optional_http_url),
        "artifact_root": reader.read("CELLRUN_ARTIFACT_ROOT", str(home / "artifacts"), _folder),
        "allowed_hosts": reader.read("CELLRUN_ALLOWED_HOSTS", _local_hosts(public_url), _words),
        "process": reader.read("CELLRUN_PROCESS", "command", _one_of(*PROCESSES)),
        "debug": reader.read("CELLRUN_DEBUG", "false", _boolean),
        "log_level": reader.read(
            "CELLRUN_LOG_LEVEL", "INFO", _one_of("DEBUG", "INFO", "WARNING", "ERROR")
        ),
        "advisory_locks": reader.read("CELLRUN_ADVISORY_LOCKS", "true", _boolean),
        "heartbeat_seconds": heartbeat,
        "lease_seconds": lease,
        "start_seconds": reader.read("CELLRUN_START_SECONDS", "60", _seconds),
        "sync_seconds": reader.read("CELLRUN_SYNC_SECONDS", "1", _seconds),
        "placement_interval_seconds": reader.read(
            "CELLRUN_PLACEMENT_INTERVAL_SECONDS", "1", _seconds
        ),
        "convergence_interval_seconds": reader.read(
            "CELLRUN_CONVERGENCE_INTERVAL_SECONDS", "5", _seconds
        ),
        "one_off_scheduling_seconds": reader.read(
            "CELLRUN_ONE_OFF_SCHEDULING_SECONDS", "1800", _seconds
        ),
        "max_tasks_per_job": reader.read("CELLRUN_MAX_TASKS_PER_JOB", "10000", _count),
        "max_unfinished_tasks_per_user": reader.read(
            "CELLRUN_MAX_UNFINISHED_TASKS_PER_USER", "16000", _count
        ),
        "max_body_bytes": reader.read("CELLRUN_MAX_BODY_BYTES", str(4 * 1024 * 1024), _count),
        "max_artifact_mib": reader.read("CELLRUN_MAX_ARTIFACT_MIB", "10240", _count),
        "audit_days": reader.read("CELLRUN_AUDIT_DAYS", "365", _days),
        "callback_allowed_networks": reader.read(
            "CELLRUN_CALLBACK_ALLOWED_NETWORKS", "", _networks
        ),
        "callback_seconds": reader.read("CELLRUN_CALLBACK_SECONDS", "10", _try_seconds),
        "callbacks_at_once": reader.read("CELLRUN_CALLBACKS_AT_ONCE", "256", _at_once),
        "callbacks_per_host": reader.read("CELLRUN_CALLBACKS_PER_HOST", "8", _at_once),
    }
    # One lost heartbeat, or one late one, must never cost a lease.
    if heartbeat and lease and lease < 2 * heartbeat:
        faults.append(
            f"CELLRUN_LEASE_SECONDS: expected at least twice CELLRUN_HEARTBEAT_SECONDS"
            f" ({2 * heartbeat:g}), not {lease:g}"
        )
    if faults:
        raise InvalidSettings("\n".join(["settings refused:", *("  " + f for f in faults)]))
    return ControlPlaneSettings(**values)


class _Reader:
    """Reads one name after another and gathers what is wrong instead of stopping at the first."""

    def __init__(self, environ: Mapping[str, str], faults: list[str]) -> None:
        self._environ = environ
        self._faults = faults

    def read(self, name: str, default: str, parse: Callable[[str], T]) -> T | None:
        text = self._environ.get(name, "") or default
        try:
            return parse(text)
        except ValueError as fault:
            # Values are not repeated when they may hold a password.
            shown = "" if name in _SECRETS or not text else f", not {text!r}"
            self._faults.append(f"{name}: expected {fault}{shown}")
            return None


_SECRETS = (
    "CELLRUN_SECRET_KEY",
    "CELLRUN_SECRET_KEY_FALLBACKS",
    "DATABASE_URL",
    "CELERY_BROKER_URL",
)


def _running_stack(home: Path) -> dict[str, str]:
    """Return where the stack that runs in `home` keeps its database and broker; {} if none does."""
    found: dict[str, str] = {}
    try:
        found["CELLRUN_SECRET_KEY"] = (home / "secret-key").read_text().strip()
        lines = (home / "run" / "env").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        name, _, value = line.removeprefix("export ").partition("=")
        if name in ("DATABASE_URL", "CELERY_BROKER_URL"):
            found[name] = "".join(shlex.split(value))
        elif name == "CELLRUN_URL":
            found["CELLRUN_PUBLIC_URL"] = "".join(shlex.split(value))
    return found


def _local_hosts(public_url: str | None) -> str:
    host = urlsplit(public_url or "").hostname or "localhost"
    return ",".join(dict.fromkeys(["localhost", "127.0.0.1", host]))


def _seconds(text: str) -> float:
    expected = "a number of seconds above 0 and at most 86400"
    try:
        number = float(text)
    except ValueError:
        raise ValueError(expected) from None
    if not 0 < number <= 86_400:
        raise ValueError(expected)
    return number


def _try_seconds(text: str) -> float:
    # It must be over, and noted, before its claim is taken back.
    expected = f"a number of seconds above 0 and at most {MAX_TRY_SECONDS:g}"
    try:
        number = float(text)
    except ValueError:
        raise ValueError(expected) from None
    if not 0 < number <= MAX_TRY_SECONDS:
        raise ValueError(expected)
    return number


def _at_once(text: str) -> int:
    # Each is a connection of this process.
    expected = "a whole number from 1 to 1000"
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1000:
        raise ValueError(expected)
    return int(text)


def _networks(text: str) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(word.strip()) for word in text.split(",")) if text else ()
    except ValueError:
        raise ValueError("networks such as 10.0.0.0/8, separated by commas") from None


def _days(text: str) -> int:
    expected = "a whole number of days from 1 to 36500"
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 36_500:
        raise ValueError(expected)
    return int(text)


def _count(text: str) -> int:
    expected = "a whole number from 1 to 1000000000"
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1_000_000_000:
        raise ValueError(expected)
    return int(text)


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError("one of " + ", ".join(words))
        return text

    return parse


def _words(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    if not all(words) or any(" " in word for word in words):
        raise ValueError("host names separated by commas")
    return words


def _folder(text: str) -> Path:
    path = Path(text)
    if "\0" in text or (path.exists() and not path.is_dir()):
        raise ValueError("a folder")
    return path.absolute()


def _secret_key(text: str) -> str:
    if len(text) < MIN_SECRET_KEY_LENGTH:
        raise ValueError(f"at least {MIN_SECRET_KEY_LENGTH} characters that nobody can guess")
    return text


def _secret_keys(text: str) -> tuple[str, ...]:
    keys = tuple(text.split(",")) if text else ()
    if any(len(key) < MIN_SECRET_KEY_LENGTH for key in keys):
        raise ValueError(
            f"former keys of at least {MIN_SECRET_KEY_LENGTH} characters, separated by commas"
        )
    return keys


def _split(text: str, expected: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port  # read only now, and refused if it is no number
    except ValueError:
        raise ValueError(expected) from None
    return parts


def _http_url(text: str) -> str:
    expected = "an address like http://host:8000"
    parts = _split(text, expected)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError(expected)
    return text.rstrip("/")


def _optional_http_url(text: str) -> str:
    return _http_url(text) if text else ""


def _redis_url(text: str) -> str:
    expected = "an address like redis://host:6379/0"
    parts = _split(text, expected)
    known = parts.scheme in ("redis", "rediss") and parts.hostname
    if not (known or (parts.scheme == "redis+socket" and parts.path)):
        raise ValueError(expected)
    return text


def _database(text: str) -> Database:
    expected = "an address like postgresql://user:password@host:5432/name"
    parts = _split(text, expected)
    name = parts.path.removeprefix("/")
    if parts.scheme not in ("postgres", "postgresql") or not name or "/" in name:
        raise ValueError(expected)
    options = dict(parse_qsl(parts.query))
    # libpq's own way to name a folder of Unix sockets, which no host part can hold.
    host = options.pop("host", "") or unquote(parts.hostname or "")
    return Database(
        name=unquote(name),
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        host=host,
        port=options.pop("port", "") or str(parts.port or ""),
        options=options,
    )


def load_from_process() -> ControlPlaneSettings:
    """Return the settings of this very process."""
    return load_settings(os.environ)
