"""Read the control plane's settings from the environment into one frozen, typed object.

Each setting is a field of ControlPlaneSettings: `lease_seconds` is CELLRUN_LEASE_SECONDS. One error
at start names all unknown CELLRUN_* names and all invalid values.
"""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, LiteralString, get_args
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

from controlplane.config.process_settings import REQUIRED, Process, secrets_of, select_for
from controlplane.config.trace_settings import read_headers, read_trace_url
from controlplane.contract.addresses import Network
from controlplane.contract.secret_files import resolve_secret_files
from controlplane.contract.settings_names import unknown_names
from controlplane.contract.wire.logins import verified
from controlplane.domain.callbacks.delivery import MAX_TRY_SECONDS
from controlplane.storage.addresses import find_folder, is_object_store, read_store_url

MIN_SECRET_KEY_LENGTH = 32
"""The keys of the cells are derived from it with HMAC-SHA256, which uses 32 bytes."""

MAX_GROUP_NAME = 150
"""Of Django's groups."""

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


LEASE_TOO_SHORT: LiteralString = "lease_too_short"


class InvalidSettings(Exception):
    """The environment is invalid; the message has one line for each fault."""


@dataclass(frozen=True, slots=True)
class Database:
    """The address of PostgreSQL in the fields of Django's settings."""

    name: str
    user: str
    password: str = field(repr=False)
    host: str
    port: str
    options: Mapping[str, str]


NO_DATABASE = Database(name="", user="", password="", host="", port="", options={})
"""The address in a process that uses no database."""


def _networks(text: str) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(word.strip()) for word in text.split(",")) if text else ()
    except ValueError:
        raise ValueError("networks such as 10.0.0.0/8, separated by commas") from None


def _listed_networks(text: str) -> tuple[Network, ...]:
    try:
        return () if text == "none" else _networks(text)
    except ValueError as error:
        raise ValueError(f"{error}, or none") from None


def _digits(text: str) -> str:
    if not text.isascii() or not text.isdigit():
        raise PydanticCustomError("digits", "digits")
    return text


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


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
        raise ValueError(f"at least {MIN_SECRET_KEY_LENGTH} unpredictable characters")
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
        _ = parts.port  # raises ValueError if it is not a number
    except ValueError:
        raise ValueError(expected) from None
    return parts


def _http_url(text: str) -> str:
    expected = "an address like http://host:8000"
    parts = _split(text, expected)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError(expected)
    return text.rstrip("/")


def _issuer(text: str) -> str:
    expected = "an address like https://login.example.org (http only for this host)"
    parts = _split(text, expected)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme not in (("http", "https") if is_local else ("https",)) or not parts.hostname:
        raise ValueError(expected)
    if parts.query or parts.fragment or not text.isprintable():
        raise ValueError(expected)
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("printable characters")
    return text


def _scopes(text: str) -> str:
    words = text.split()
    if "openid" not in words or not text.isprintable():
        raise ValueError("words separated by spaces, with openid among them")
    return " ".join(words)


def _items(text: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in text.split(","))
    if not all(items) or not text.isprintable():
        raise ValueError("names separated by commas")
    return items


def _group_pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [item.rpartition("=") for item in text.split(",")]
    found = tuple((claim.strip(), group.strip()) for claim, _, group in pairs)
    if not text.isprintable() or any(
        not claim or not 0 < len(group) <= MAX_GROUP_NAME for claim, group in found
    ):
        raise ValueError("pairs like team-a=research,team-b=operations")
    return found


def _redis_url(text: str) -> str:
    expected = "an address like redis://host:6379/0"
    parts = _split(text, expected)
    known = parts.scheme in ("redis", "rediss") and parts.hostname
    if not (known or (parts.scheme == "redis+socket" and parts.path)):
        raise ValueError(expected)
    return verified(text)


def _database(text: str) -> Database:
    expected = "an address like postgresql://user:password@host:5432/name"
    parts = _split(text, expected)
    name = parts.path.removeprefix("/")
    if parts.scheme not in ("postgres", "postgresql") or not name or "/" in name:
        raise ValueError(expected)
    options = dict(parse_qsl(parts.query))
    # libpq's option for a folder of Unix sockets, which cannot be the host of a URL.
    host = options.pop("host", "") or unquote(parts.hostname or "")
    return Database(
        name=unquote(name),
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        host=host,
        port=options.pop("port", "") or str(parts.port or ""),
        options=options,
    )


@dataclass(frozen=True, slots=True)
class ExpectedFormat:
    """The format of a setting, as shown in errors and in the documentation."""

    text: str


Seconds = Annotated[
    float,
    Field(gt=0, le=86_400, allow_inf_nan=False),
    ExpectedFormat("a number of seconds above 0 and at most 86400"),
]
# A try must end and be recorded before its claim expires.
TrySeconds = Annotated[
    float,
    Field(gt=0, le=MAX_TRY_SECONDS, allow_inf_nan=False),
    ExpectedFormat(f"a number of seconds above 0 and at most {MAX_TRY_SECONDS:g}"),
]
Count = Annotated[
    int,
    BeforeValidator(_digits),
    Field(ge=1, le=1_000_000_000),
    ExpectedFormat("a whole number from 1 to 1000000000"),
]
# Each is a connection of one process.
AtOnce = Annotated[
    int,
    BeforeValidator(_digits),
    Field(ge=1, le=1000),
    ExpectedFormat("a whole number from 1 to 1000"),
]
Size = Annotated[
    int,
    BeforeValidator(_digits),
    Field(ge=0, le=1_000_000_000),
    ExpectedFormat("a whole number from 0 to 1000000000"),
]
Days = Annotated[
    int,
    BeforeValidator(_digits),
    Field(ge=1, le=36_500),
    ExpectedFormat("a whole number of days from 1 to 36500"),
]
Months = Annotated[
    int,
    BeforeValidator(_digits),
    Field(ge=1, le=1_200),
    ExpectedFormat("a whole number of months from 1 to 1200"),
]
Switch = Annotated[bool, BeforeValidator(_boolean)]
Ratio = Annotated[
    float,
    Field(ge=0, le=1, allow_inf_nan=False),
    ExpectedFormat("a number from 0 to 1"),
]
Folder = Annotated[Path, BeforeValidator(_folder)]
HttpUrl = Annotated[str, BeforeValidator(_http_url)]


class ControlPlaneSettings(BaseModel):
    """All settings of the control plane. Lengths of time are in seconds."""

    model_config = ConfigDict(
        frozen=True,
        arbitrary_types_allowed=True,
        alias_generator=lambda name: f"CELLRUN_{name.upper()}",
    )

    home: Path
    # Empty in the processes that do not read it; the same for `database`.
    secret_key: Annotated[str, BeforeValidator(_secret_key)] = Field(default="", repr=False)
    # Former keys, which still verify signatures and open sealed secrets.
    secret_key_fallbacks: Annotated[tuple[str, ...], BeforeValidator(_secret_keys)] = Field(
        default=(), repr=False
    )
    # The key of stored secrets, instead of one that is derived from `secret_key`.
    sealing_key: Annotated[str, BeforeValidator(_secret_key)] = Field(default="", repr=False)
    sealing_key_fallbacks: Annotated[tuple[str, ...], BeforeValidator(_secret_keys)] = Field(
        default=(), repr=False
    )
    database: Annotated[Database, BeforeValidator(_database)] = Field(
        default=NO_DATABASE, alias="DATABASE_URL", repr=False
    )
    broker_url: Annotated[str, BeforeValidator(_redis_url)] = Field(
        alias="CELERY_BROKER_URL", repr=False
    )
    # Enrolment and revocation write the logins of cells into Redis.
    redis_users: Switch = False
    public_url: HttpUrl = "http://127.0.0.1:8000"
    # The address of Flower for browsers; without it, pages have no links to Flower.
    flower_url: HttpUrl = ""
    artifact_root: Folder = Field(default_factory=lambda read: read["home"] / "artifacts")
    # An object store, or another folder; without it the files are in `artifact_root`.
    store_url: Annotated[str, BeforeValidator(read_store_url)] = ""
    # Credentials of the object store; without them its library uses those that it finds.
    aws_access_key_id: str = Field(default="", alias="AWS_ACCESS_KEY_ID", repr=False)
    aws_secret_access_key: str = Field(default="", alias="AWS_SECRET_ACCESS_KEY", repr=False)
    aws_session_token: str = Field(default="", alias="AWS_SESSION_TOKEN", repr=False)
    azure_account_key: str = Field(default="", alias="AZURE_STORAGE_ACCOUNT_KEY", repr=False)
    allowed_hosts: Annotated[tuple[str, ...], BeforeValidator(_words)] = Field(
        default_factory=lambda read: _local_hosts(read["public_url"])
    )
    process: Annotated[Process, ExpectedFormat("one of " + ", ".join(get_args(Process)))] = (
        "command"
    )
    debug: Switch = False
    log_level: Annotated[LogLevel, ExpectedFormat("one of " + ", ".join(get_args(LogLevel)))] = (
        "INFO"
    )
    advisory_locks: Switch = True
    prepared_statements: Switch = True
    heartbeat_seconds: Seconds = 5.0
    lease_seconds: Seconds = Field(default=30.0, validate_default=True)
    start_seconds: Seconds = 60.0
    sync_seconds: Seconds = 1.0
    placement_interval_seconds: Seconds = 1.0
    convergence_interval_seconds: Seconds = 5.0
    one_off_scheduling_seconds: Seconds = 1800.0
    max_tasks_per_job: Count = 10_000
    max_unfinished_tasks_per_user: Count = 16_000
    max_body_bytes: Count = 4 * 1024 * 1024
    # What each token may cost each web process; a unit is about a millisecond of it.
    request_units_per_second: Count = 500
    request_burst_units: Count = 100_000
    max_artifact_mib: Count = 10_240
    # Of a store in a folder; 0: it may fill its disk.
    store_min_free_mib: Size = 1024
    # Without a token, only these may read /metrics.
    metrics_networks: Annotated[tuple[Network, ...], BeforeValidator(_listed_networks)] = (
        IPv4Network("127.0.0.0/8"),
        IPv6Network("::1"),
    )
    # Every user may read the work of all projects.
    open_reading: Switch = False
    # Login with an OpenID provider, which needs the first three.
    oidc_issuer: Annotated[str, BeforeValidator(_issuer)] = ""
    oidc_client_id: Annotated[str, BeforeValidator(_printable)] = ""
    oidc_client_secret: Annotated[str, BeforeValidator(_printable)] = Field(default="", repr=False)
    oidc_scopes: Annotated[str, BeforeValidator(_scopes)] = "openid profile"
    oidc_create_users: Switch = True
    oidc_groups_claim: Annotated[str, BeforeValidator(_printable)] = "groups"
    # A value of the claim -> a group of Django. Groups that are not listed are left alone.
    oidc_groups: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_group_pairs)] = ()
    oidc_operator_groups: Annotated[tuple[str, ...], BeforeValidator(_items)] = ()
    # Logins with a password need a second factor.
    require_totp: Switch = False
    audit_days: Days = 365
    cache_days: Days = 30
    usage_months: Months = 24
    max_cache_mib: Count = 102_400
    callback_allowed_networks: Annotated[tuple[Network, ...], BeforeValidator(_networks)] = ()
    callback_seconds: TrySeconds = 10.0
    callbacks_at_once: AtOnce = 256
    callbacks_per_host: AtOnce = 8
    # Traces of jobs, which the callbacks process sends with OTLP over HTTP.
    tracing: Switch = False
    otlp_endpoint: HttpUrl = Field(
        default="http://localhost:4318", alias="OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    otlp_headers: Annotated[tuple[tuple[str, str], ...], BeforeValidator(read_headers)] = Field(
        default=(), alias="OTEL_EXPORTER_OTLP_HEADERS", repr=False
    )
    # The share of the jobs that get a trace, unless their submitter has decided.
    trace_ratio: Ratio = Field(default=1.0, alias="OTEL_TRACES_SAMPLER_ARG")
    trace_url: Annotated[str, BeforeValidator(read_trace_url)] = ""

    @property
    def has_oidc(self) -> bool:
        """Return whether users may log in with an OpenID provider."""
        return bool(self.oidc_issuer and self.oidc_client_id and self.oidc_client_secret)

    @property
    def has_object_store(self) -> bool:
        """Return whether files are kept in an object store."""
        return is_object_store(self.store_url)

    @property
    def store_folder(self) -> Path:
        """Return the folder of the files, if they are not kept in an object store."""
        return find_folder(self.store_url) if self.store_url else self.artifact_root

    @field_validator("lease_seconds")
    @classmethod
    def check_lease(cls, lease: float, info: ValidationInfo) -> float:
        """Return the lease if it is longer than one lost or late heartbeat. Raise ValueError."""
        heartbeat = info.data.get("heartbeat_seconds")
        if heartbeat is not None and lease < 2 * heartbeat:
            least = f"at least twice CELLRUN_HEARTBEAT_SECONDS ({2 * heartbeat:g})"
            raise PydanticCustomError(LEASE_TOO_SHORT, f"{least}, not {lease:g}")
        return lease


SETTING_NAMES: Mapping[str, str] = MappingProxyType(
    {known.alias: name for name, known in ControlPlaneSettings.model_fields.items() if known.alias}
)
"""Name of a setting -> its field."""


def load_settings(environ: Mapping[str, str]) -> ControlPlaneSettings:
    """Return the settings in `environ`. Raise InvalidSettings with all faults.

    Missing settings are taken from the stack that runs in CELLRUN_HOME, if any, so that `manage.py`
    in a shell uses the database of `make up`.
    """
    process = environ.get("CELLRUN_PROCESS") or "command"
    resolved, unusable = resolve_secret_files(environ, secrets_of(process), read_secret_file)
    faults = [f"{name}: unknown setting" for name in unknown_names(environ)] + unusable
    home = Path(environ.get("CELLRUN_HOME") or ".cellrun").absolute()
    if process == "flower" and not resolved.get("FLOWER_BASIC_AUTH") and not unusable:
        faults.append("FLOWER_BASIC_AUTH: Flower needs a login: set it to user:password")
    found = select_for(process, {**_running_stack(home), **resolved})
    if process == "web":  # Other processes need none of them.
        faults += _incomplete_oidc(found)
    if found.get("CELLRUN_TRACING") == "true" and find_spec("opentelemetry") is None:
        faults.append("CELLRUN_TRACING: needs the extra: pip install 'cellrun[tracing]'")
    # A required setting that is missing is reported like an invalid value, unless its file is.
    required = select_for(process, dict.fromkeys(REQUIRED, ""))
    reported = {fault.partition(":")[0].removesuffix("_FILE") for fault in unusable}
    texts = {
        name: found.get(name, "")
        for name in SETTING_NAMES
        if found.get(name) or (name in required and name not in reported)
    }
    try:
        settings = ControlPlaneSettings.model_validate({**texts, "CELLRUN_HOME": str(home)})
    except ValidationError as error:
        faults += [
            _describe(fault, texts)
            for fault in error.errors(include_url=False)
            # A default that depends on a setting which is invalid.
            if fault["type"] != "default_factory_not_called"
        ]
    if faults:
        raise InvalidSettings("\n".join(["settings refused:", *("  " + f for f in faults)]))
    return settings


def _incomplete_oidc(found: Mapping[str, str]) -> list[str]:
    """Return a fault for each missing setting of a login with OpenID that is partly set."""
    needed = [f"CELLRUN_OIDC_{name}" for name in ("ISSUER", "CLIENT_ID", "CLIENT_SECRET")]
    missing = [name for name in needed if not found.get(name)]
    if len(missing) == len(needed):
        return []
    return [f"{name}: must be set with the other settings of CELLRUN_OIDC" for name in missing]


def _describe(fault: ErrorDetails, texts: Mapping[str, str]) -> str:
    """Return "NAME: expected ..., not ..."; a value that may hold a password is not repeated."""
    place = str(fault["loc"][0])  # the setting, or the field if a default is invalid
    known = ControlPlaneSettings.model_fields[SETTING_NAMES.get(place, place)]
    name = str(known.alias)
    if fault["type"] == LEASE_TOO_SHORT:
        return f"{name}: expected {fault['msg']}"
    if fault["type"] == "value_error":  # its text is the expected format
        words = str(fault["ctx"]["error"])
    else:
        words = next(item.text for item in known.metadata if isinstance(item, ExpectedFormat))
    text = texts.get(name) or ""
    shown = f", not {text!r}" if text and known.repr else ""
    return f"{name}: expected {words}{shown}"


def _running_stack(home: Path) -> dict[str, str]:
    """Return settings of the stack that runs in `home`; an empty dict if none runs."""
    found: dict[str, str] = {}
    try:
        found["CELLRUN_SECRET_KEY"] = (home / "secret-key").read_text().strip()
        lines = (home / "run" / "env").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        name, _, value = line.removeprefix("export ").partition("=")
        if name in ("DATABASE_URL", "CELERY_BROKER_URL", "CELLRUN_REDIS_USERS"):
            found[name] = "".join(shlex.split(value))
        elif name == "CELLRUN_URL":
            found["CELLRUN_PUBLIC_URL"] = "".join(shlex.split(value))
    return found


def _local_hosts(public_url: str) -> tuple[str, ...]:
    host = urlsplit(public_url).hostname or "localhost"
    return tuple(dict.fromkeys(["localhost", "127.0.0.1", host]))


def read_secret_file(path: str) -> str:
    """Return the text of a file with a secret. Raise OSError or ValueError."""
    return Path(path).expanduser().read_text()


def load_from_process() -> ControlPlaneSettings:
    """Return the settings of the current process."""
    return load_settings(os.environ)
