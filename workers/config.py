"""A cell's settings, read once from the environment; an error names all invalid ones."""

import ipaddress
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from controlplane.contract import settings_names
from controlplane.contract.addresses import Network
from controlplane.contract.messages.reports import MAX_RESOURCES
from controlplane.contract.secret_files import STORE_CREDENTIALS, resolve_secret_files
from controlplane.contract.wire import keys, logins
from controlplane.contract.wire.queues import CELL_NAME
from workers.runners.discovery import chosen_names
from workers.secret_folder import is_in_memory

DRIVERS = ("docker", "process", "memory")
BROKER_LOGINS = ("url", "key")
NAME = CELL_NAME
LABEL_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
LABEL_VALUE = re.compile(r"[A-Za-z0-9._/:@+-]{0,63}")
RESOURCE = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9a-fA-F:]{2,39}")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
MAX_LOG_BYTES = 10 * 1024 * 1024  # per stream of an attempt
MAX_FILES_BYTES = 10 * 2**30
MEMORY_KEPT_MIB = 512  # of the host's memory, for the engine and the cell itself
_SECRETS = ("CELERY_BROKER_URL", *STORE_CREDENTIALS)  # the key is always in a file
# Resources with units, and their names in CELLRUN_CELL_CAPACITY.
_UNITS_OF = {"cpu_millis": "cpu", "memory_mib": "memory", "disk_mib": "disk"}
_UNITS = {
    "": 1,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
}


class MalformedSettings(ValueError):
    """Unusable settings; the text names each of them with the expected value."""


def default_concurrency() -> int:
    """Return twice the number of cores: more concurrency only lengthens each start (measured)."""
    return 2 * (os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class CellConfig:
    """All settings of one cell.

    `capacity`: cpu_millis, memory_mib, disk_mib, gpu and named resources. `pool`: that in which the
    cell expects to be; empty: that of its enrolment. `tags`: `a` is required
    of a task, `b?` is optional. `home`: folder for journal, workspaces and logs. `address`: the
    host at which published ports are reached; empty: the local address of the route to web. An
    empty `control_url` disables uploads of logs (used by tests). `store_credentials`, `file_roots`,
    `file_systems`, `allowed_networks`: see workers.remote_files. `max_files_bytes`: limit for the
    inputs, the outputs or the checkpoint of one attempt. `privileged_allowed`: whether this cell
    accepts privileged tasks, and extra capabilities, that its pool allows. `exec_allowed`: whether
    users may start programs in attempts here (`cellrun exec`). `mount_roots`: folders that tasks
    may mount; None: those that the pool allows. `runners`: task types of installed packages.
    `secrets`: folder for secrets that tasks get as files; None: a folder in /dev/shm.
    `concurrency`: limit of concurrent engine calls, not of running attempts. `has_own_login`:
    whether it uses the logins of its key at Redis instead of the one in `broker_url`. `key_file`:
    where another key may replace `key` while the cell runs.
    """

    name: str
    key: bytes = field(repr=False)
    home: Path
    broker_url: str = field(repr=False)
    control_url: str
    installation: str
    capacity: Mapping[str, int]
    driver: str = "docker"
    address: str = ""
    pool: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    evacuate: bool = False
    log_level: str = "INFO"
    max_log_bytes: int = MAX_LOG_BYTES
    secrets: Path | None = None
    secrets_on_disk: bool = False
    store_credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    file_roots: tuple[Path, ...] = ()
    file_systems: tuple[str, ...] = ()
    allowed_networks: tuple[Network, ...] | None = None
    max_files_bytes: int = MAX_FILES_BYTES
    privileged_allowed: bool = True
    exec_allowed: bool = True
    mount_roots: tuple[Path, ...] | None = None
    runners: tuple[str, ...] = ()
    concurrency: int = field(default_factory=default_concurrency)
    has_own_login: bool = False
    key_file: Path = Path()

    @property
    def receiver_url(self) -> str:
        """Return the address of Redis with the login for orders and events."""
        return self._url_of(logins.receiver(self.name))

    @property
    def sender_url(self) -> str:
        """Return the address of Redis with the login for messages to the inbox."""
        return self._url_of(logins.sender(self.name))

    def _url_of(self, user: str) -> str:
        if not self.has_own_login:
            return self.broker_url
        return logins.with_login(self.broker_url, user, self.key)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "CellConfig":
        """Read the settings in `env`, and the key file. Raise MalformedSettings."""
        resolved, faults = resolve_secret_files(env, _SECRETS, _text_of)
        read = _Reader(resolved, faults)
        name = read("CELLRUN_CELL_NAME", _name)
        home = read("CELLRUN_CELL_HOME", _path, f".cellrun/cells/{name or 'unnamed'}")
        on_disk = bool(read("CELLRUN_CELL_SECRETS_ON_DISK", _flag, "false"))
        key_file, key = read("CELLRUN_CELL_KEY_FILE", _key_file) or (Path(), b"")
        config = cls(
            name=name,
            key=key,
            key_file=key_file,
            home=home,
            broker_url=read("CELERY_BROKER_URL", _broker_url),
            has_own_login=read("CELLRUN_CELL_BROKER_LOGIN", _one_of(BROKER_LOGINS), "url") == "key",
            control_url=read("CELLRUN_CONTROL_URL", _http_url),
            installation=read("CELLRUN_INSTALLATION", _name),
            capacity=_capacity(read, home),
            driver=read("CELLRUN_CELL_DRIVER", _one_of(DRIVERS), "docker"),
            address=read("CELLRUN_CELL_ADDRESS", _host, ""),
            pool=read("CELLRUN_CELL_POOL", _pool, ""),
            labels=read("CELLRUN_CELL_LABELS", _labels, ""),
            tags=read("CELLRUN_CELL_TAGS", _tags, ""),
            secrets=read("CELLRUN_CELL_SECRETS", _secret_folder(on_disk), ""),
            secrets_on_disk=on_disk,
            evacuate=read("CELLRUN_CELL_EVACUATE", _flag, "false"),
            store_credentials={
                name: resolved[name] for name in STORE_CREDENTIALS if resolved.get(name)
            },
            file_roots=read("CELLRUN_CELL_FILE_ROOTS", _roots, ""),
            file_systems=read("CELLRUN_CELL_FILE_SYSTEMS", _split, "s3,s3a,gs,gcs,az,abfs,abfss"),
            allowed_networks=read("CELLRUN_CELL_ALLOWED_NETWORKS", _networks, "pool"),
            max_log_bytes=read("CELLRUN_CELL_MAX_LOG_MIB", _mebibytes, "10"),
            max_files_bytes=read("CELLRUN_CELL_MAX_FILES_MIB", _mebibytes, "10240"),
            mount_roots=read("CELLRUN_CELL_MOUNTS", _mount_roots, "any"),
            privileged_allowed=read("CELLRUN_CELL_PRIVILEGED", _flag, "true"),
            exec_allowed=read("CELLRUN_CELL_EXEC", _flag, "true"),
            runners=read("CELLRUN_CELL_RUNNERS", chosen_names, "all"),
            log_level=read("CELLRUN_LOG_LEVEL", _one_of(LOG_LEVELS), "INFO"),
        )
        read.raise_problems()
        return config


class _Reader:
    """Reads settings one by one and collects problems."""

    def __init__(self, env: Mapping[str, str], faults: Sequence[str] = ()) -> None:
        self.env = env
        self.problems = [f"{name} is not a setting" for name in settings_names.unknown_names(env)]
        self.problems += faults
        self._reported = {fault.partition(":")[0].removesuffix("_FILE") for fault in faults}

    def __call__(self, name: str, parse: Callable[[str], Any], default: str | None = None) -> Any:
        """Return the value of `name`; record a problem and return None if it is missing or invalid.

        A setting without a default must be set.
        """
        text = self.env.get(name, "").strip() or default
        if name in self._reported:
            return None
        if text is None:
            self.problems.append(f"{name} is not set")
            return None
        try:
            return parse(text)
        except (ValueError, OSError) as error:
            self.problems.append(f"{name}: {error}")
            return None

    def raise_problems(self) -> None:
        """Raise MalformedSettings if there were problems."""
        if self.problems:
            raise MalformedSettings("; ".join(self.problems))


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a name ([a-z0-9][a-z0-9._-]{{0,62}})")
    return text


def _pool(text: str) -> str:
    return _name(text) if text else ""


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _split(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (piece.strip() for piece in text.split(","))))


def _roots(text: str) -> tuple[Path, ...]:
    roots = tuple(map(Path, _split(text)))
    for root in roots:
        if not root.is_absolute() or root == Path("/"):
            raise ValueError(f"{root} is not the absolute path of a folder below /")
    return roots


def _mount_roots(text: str) -> tuple[Path, ...] | None:
    if text == "any":
        return None
    return () if text == "none" else _roots(text)


def _networks(text: str) -> tuple[Network, ...] | None:
    if text == "pool":
        return None
    return () if text == "none" else tuple(ipaddress.ip_network(word) for word in _split(text))


def _mebibytes(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 2**30:
        raise ValueError(f"{text!r} is not a whole number of MiB of at least 1")
    return int(text) * 2**20


def _secret_folder(may_be_on_disk: bool) -> Callable[[str], Path | None]:
    def parse(text: str) -> Path | None:
        if not text:
            return None  # see default_folder
        folder = existing = _path(text)
        while not existing.exists():
            existing = existing.parent
        if not may_be_on_disk and not is_in_memory(existing):
            raise ValueError(
                f"{folder} is not in memory (tmpfs), and CELLRUN_CELL_SECRETS_ON_DISK is not true"
            )
        return folder

    return parse


def _text_of(path: str) -> str:
    return Path(path).expanduser().read_text()


def _key_file(text: str) -> tuple[Path, bytes]:
    path = _path(text)
    return path, read_key(path)


def read_key(path: Path) -> bytes:
    """Return the key in a file. Raise OSError, ValueError."""
    return keys.decode_key(path.read_text(encoding="ascii"))


def _url(text: str, schemes: tuple[str, ...]) -> str:
    parts = urlsplit(text)
    if parts.scheme not in schemes or not (parts.hostname or parts.path):
        raise ValueError(f"a URL is expected, with one of the schemes {', '.join(schemes)}")
    return text


def _broker_url(text: str) -> str:
    return logins.verified(_url(text, ("redis", "rediss", "redis+socket", "unix")))


def _http_url(text: str) -> str:
    return _url(text, ("http", "https")).rstrip("/")


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for choice in choices:
            if choice.lower() == text.lower():
                return choice
        raise ValueError(f"{text!r} is not one of {', '.join(choices)}")

    return parse


def _host(text: str) -> str:
    if text and not HOST.fullmatch(text):
        raise ValueError(f"{text!r} is not a host name or an IP address")
    return text


def _flag(text: str) -> bool:
    return _one_of(("true", "false", "1", "0", "yes", "no"))(text) in ("true", "1", "yes")


def _pairs(text: str) -> list[tuple[str, str]]:
    """Return `k=v,k=v` as pairs. Raise ValueError if a key is repeated."""
    pairs: list[tuple[str, str]] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, sign, value = part.partition("=")
        if not sign:
            raise ValueError(f"{part!r} is not key=value")
        if key.strip() in dict(pairs):
            raise ValueError(f"{key.strip()!r} is given twice")
        pairs.append((key.strip(), value.strip()))
    return pairs


def _labels(text: str) -> Mapping[str, str]:
    for key, value in _pairs(text):
        if not LABEL_KEY.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
            raise ValueError(f"{key}={value} is not a label (letters, digits, . _ / -; at most 63)")
    return MappingProxyType(dict(_pairs(text)))


def _tags(text: str) -> tuple[str, ...]:
    tags = tuple(filter(None, (piece.strip() for piece in text.split(","))))
    for tag in tags:
        if not NAME.fullmatch(tag.removesuffix("?")):
            raise ValueError(f"{tag!r} is not a tag (a name; an optional one ends with ?)")
    if len({tag.removesuffix("?") for tag in tags}) != len(tags):
        raise ValueError("a tag is given twice")
    return tags


def _capacity(read: _Reader, home: Path | None) -> Mapping[str, int]:
    """Return the configured capacity, completed by the host's."""
    given = read("CELLRUN_CELL_CAPACITY", parse_capacity, "") or {}
    found = {**host_capacity(home or Path.cwd()), **given}
    if len(found) > MAX_RESOURCES:
        raise MalformedSettings(f"CELLRUN_CELL_CAPACITY: at most {MAX_RESOURCES} resources")
    return MappingProxyType(found)


def parse_capacity(text: str) -> dict[str, int]:
    """Parse `cpu=2,memory=2048Mi,disk=10Gi,gpu=0,licence=3` to cpu_millis, MiB and counts.

    Raise ValueError.
    """
    capacity: dict[str, int] = {}
    for key, value in _pairs(text):
        if key == "cpu":
            capacity["cpu_millis"] = _thousandths(value)
        elif key in ("memory", "disk"):
            capacity[f"{key}_mib"] = _bytes(key, value) // 2**20
        elif key in _UNITS_OF:
            raise ValueError(f"{key}={value}: use {_UNITS_OF[key]}")
        elif RESOURCE.fullmatch(key) and value.isdecimal() and int(value) < 2**53:
            capacity[key] = int(value)
        else:
            raise ValueError(f"{key}={value}: a resource name and a whole number are expected")
    return capacity


def _thousandths(text: str) -> int:
    match = re.fullmatch(r"(\d{1,6})(?:\.(\d{1,3}))?|(\d{1,9})m", text)
    if match is None:
        raise ValueError(f"cpu={text}: cores are expected, like 2, 0.5 or 500m")
    cores, fraction, thousandths = match.groups()
    if thousandths:
        return int(thousandths)
    return int(cores) * 1000 + int((fraction or "0").ljust(3, "0"))


def _bytes(key: str, text: str) -> int:
    match = re.fullmatch(r"(\d{1,15})([A-Za-z]*)", text)
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{key}={text}: a size is expected, like 512Mi or 2Gi")
    return int(match[1]) * _UNITS[match[2]]


def host_capacity(folder: Path) -> dict[str, int]:
    """Return this machine's cores, memory minus a reserve, and free disk space at `folder`."""
    while not folder.exists():
        folder = folder.parent
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return {
        "cpu_millis": 1000 * (os.cpu_count() or 1),
        "memory_mib": max(memory_mib - MEMORY_KEPT_MIB, memory_mib // 2),
        "disk_mib": shutil.disk_usage(folder).free // 2**20,
        "gpu": 0,
    }
