"""Field types of a job: names, images, paths, instants, quantities."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import IPv6Address
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)

from controlplane.contract.images import normalize_registry, registry_of
from controlplane.contract.patterns import split_path
from controlplane.spec import quantities
from controlplane.spec.hosts import is_malformed_address, read_address

MAX_COUNT = 1_000_000  # maximum of fields without a lower limit; fits any column
MAX_SECONDS = 31_536_000  # one year
MIN_SECONDS = 0.001

_LATEST = datetime(2100, 1, 1, tzinfo=UTC)
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


class Model(BaseModel):
    """Base of all models: unknown fields and wrong types are rejected, not converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


NAME_PATTERN = "[a-z0-9][a-z0-9._-]{0,62}"

# Pydantic matches with Rust's regex: `$` is the end of the text, unlike in Python.
Name = Annotated[str, Field(pattern=rf"^{NAME_PATTERN}$")]
Guid = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@/+=-]{0,254}$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,254}$")]
CacheKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:=+-]{0,255}$")]
ConcurrencyKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@/+=-]{0,254}$")]
CacheVersion = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")]
UserName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,62})?$")
]
LabelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
LabelValue = Annotated[str, Field(max_length=255)]

_DOMAIN_PART = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_PATH_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = rf"(?:{_DOMAIN_PART}(?:\.{_DOMAIN_PART})*|\[[a-fA-F0-9:]+\])(?::[0-9]{{1,5}})?"
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?"
    rf"{_PATH_PART}(?:/{_PATH_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@sha256:[a-f0-9]{64})?",
    re.ASCII,
)
MAX_IMAGE_LENGTH = 512


def _check_image(text: str) -> str:
    if len(text) > MAX_IMAGE_LENGTH:
        raise ValueError(f"must have at most {MAX_IMAGE_LENGTH} characters")
    if not _IMAGE.fullmatch(text):
        raise ValueError("is not an image reference like registry:5000/name:tag@sha256:…")
    return text


Image = Annotated[str, AfterValidator(_check_image)]

MAX_SERVER_LENGTH = 255


def _check_server(text: str) -> str:
    if len(text) > MAX_SERVER_LENGTH:
        raise ValueError(f"must have at most {MAX_SERVER_LENGTH} characters")
    server = normalize_registry(text)
    if not re.fullmatch(_HOST, text, re.ASCII) or registry_of(f"{text}/image") != server:
        raise ValueError("must be host or host:port of a registry, as in the names of its images")
    return server


RegistryServer = Annotated[str, AfterValidator(_check_server)]

MAX_PATH_LENGTH = 1_024
_RESERVED_PATHS = ("/proc", "/sys", "/dev", "/run/cellrun")


def _check_path(text: str) -> str:
    parts = text.rstrip("/").split("/")
    if len(text) > MAX_PATH_LENGTH:
        raise ValueError(f"must have at most {MAX_PATH_LENGTH} characters")
    if len(parts) < 2 or parts[0] or any(part in ("", ".", "..") for part in parts[1:]):
        raise ValueError("must be an absolute path without empty parts, '.' and '..'")
    return text


def _check_file_path(text: str) -> str:
    if text.endswith("/"):
        raise ValueError("must be the path of a file, without '/' at its end")
    return check_target(text)


def check_target(text: str) -> str:
    """Return `text` if it is a valid path of a file in the container. Raise ValueError."""
    _check_path(text)
    for reserved in _RESERVED_PATHS:
        if text == reserved or text.startswith(reserved + "/"):
            raise ValueError(f"must not be below {reserved}")
    return text


def _check_folder(text: str) -> str:
    return text if text == "/" else _check_path(text)


def _check_output_path(text: str) -> str:
    folder, _ = split_path(_check_path(text))
    if folder == "/":
        raise ValueError("must begin with a folder without wildcards, like /out/*.csv")
    check_target(folder)
    return text


Folder = Annotated[str, AfterValidator(_check_folder)]
TargetPath = Annotated[str, AfterValidator(check_target)]
FilePath = Annotated[str, AfterValidator(_check_file_path)]
OutputPath = Annotated[str, AfterValidator(_check_output_path)]

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{0,31}://[!-~]+", re.ASCII)
MAX_ADDRESS_LENGTH = 2_000


def _check_address(text: str) -> str:
    if len(text) > MAX_ADDRESS_LENGTH:
        raise ValueError(f"must have at most {MAX_ADDRESS_LENGTH} characters")
    if not _ADDRESS.fullmatch(text):
        raise ValueError("must be an address like https://host/path or s3://bucket/key")
    if ".." in re.split(r"[/?#]", text.partition("://")[2]):
        raise ValueError("must not have '..' as a part")
    return text


MAX_OUTPUT_URL_LENGTH = 1_024  # the longest key of S3


def _check_output_url(text: str) -> str:
    """Check the address of an output: a file system that can be written, and a path in it."""
    scheme = _check_address(text).partition("://")[0]
    if len(text) > MAX_OUTPUT_URL_LENGTH:
        raise ValueError(f"must have at most {MAX_OUTPUT_URL_LENGTH} characters")
    if scheme in ("http", "https"):
        raise ValueError(f"must be like s3://bucket/key or file:///path: {scheme} is only read")
    if "::" in text:
        raise ValueError("must not be chained with '::'")
    parts = urlsplit(text)
    if parts.password is not None:
        raise ValueError("must not contain a password")
    if {"..", "."} & set(unquote(parts.path).split("/")) or "%00" in parts.path:
        raise ValueError("must not have '.', '..' or NUL in its path")
    has_path = bool(parts.path.strip("/"))
    if scheme == "file" and (parts.netloc or parts.query or parts.fragment or not has_path):
        raise ValueError("must be like file:///path, without host, query and fragment")
    if not has_path or (scheme != "file" and not parts.netloc):
        raise ValueError("must have a path, like s3://bucket/key")
    return text


_HOST_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_AND_PORT = re.compile(
    rf"(?:{_HOST_PART}(?:\.{_HOST_PART})*\.?|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?", re.ASCII
)
MAX_HOST_LENGTH = 253  # of a DNS name


def _check_callback_url(text: str) -> str:
    """Return the URL with its scheme in lower case: schemes ignore case (RFC 3986)."""
    scheme, separator, rest = text.partition("://")
    text = f"{scheme.lower()}{separator}{rest}"
    if len(text) > MAX_ADDRESS_LENGTH:
        raise ValueError(f"must have at most {MAX_ADDRESS_LENGTH} characters")
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or not _ADDRESS.fullmatch(text):
        raise ValueError("must be an address like https://host/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not contain a user or password: callbacks are signed instead")
    if len(parts.hostname or "") > MAX_HOST_LENGTH:
        raise ValueError(f"must have a host of at most {MAX_HOST_LENGTH} characters")
    if not _HOST_AND_PORT.fullmatch(parts.netloc):
        raise ValueError("must have a host of letters, digits, '-', '_' and '.', or an IP address")
    _check_host(parts.hostname or "", in_brackets=parts.netloc.startswith("["))
    if parts.fragment:
        raise ValueError("must not have a fragment")
    return text


def _check_host(host: str, *, in_brackets: bool) -> None:
    """Check that the host is a name or an IP address. Raise ValueError."""
    if in_brackets and not isinstance(read_address(host), IPv6Address):
        raise ValueError("must have an IPv6 address between '[' and ']'")
    if not in_brackets and is_malformed_address(host):
        raise ValueError("must have a name or an IP address as its host: numbers alone are neither")


_ARTIFACT_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
_ARTIFACT = rf"^{_ARTIFACT_PART}(/{_ARTIFACT_PART}){{0,7}}$"
ArtifactName = Annotated[str, Field(pattern=_ARTIFACT, max_length=200)]


def is_artifact_name(text: str) -> bool:
    """Return whether `text` is a valid name of an output."""
    return len(text) <= 200 and re.fullmatch(_ARTIFACT, text) is not None


Address = Annotated[str, AfterValidator(_check_address)]
OutputUrl = Annotated[str, AfterValidator(_check_output_url)]
CallbackUrl = Annotated[str, AfterValidator(_check_callback_url)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]

_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)


def _parse_instant(value: object) -> datetime:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    if not isinstance(value, str) or not _RFC_3339.fullmatch(value):
        raise ValueError("must be an RFC 3339 instant like 2030-01-31T12:00:00Z")
    try:
        instant = datetime.fromisoformat(value.upper())
    except ValueError:
        raise ValueError("is not an instant that exists") from None
    if not _EARLIEST <= instant <= _LATEST:
        raise ValueError("must be from 1970 to 2100")
    return instant


Instant = Annotated[
    datetime,
    BeforeValidator(_parse_instant),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


def quantity(
    parse: Callable[[object], int], render: Callable[[int], str], example: str
) -> tuple[Any, ...]:
    """Return annotations of a quantity: an int that `parse` reads and `render` writes."""
    schema = {"anyOf": [{"type": "string"}, {"type": "number"}], "examples": [example]}
    return (
        BeforeValidator(parse),
        PlainSerializer(render, return_type=str),
        WithJsonSchema(schema),
    )


Cpu = Annotated[int, *quantity(quantities.parse_cpu, quantities.format_cpu, "0.5")]
Memory = Annotated[int, *quantity(quantities.parse_memory, quantities.format_mib, "64Mi")]
Disk = Annotated[int, *quantity(quantities.parse_disk, quantities.format_mib, "100Mi")]
SharedMemory = Annotated[int, *quantity(quantities.parse_shm, quantities.format_mib, "64Mi")]


_GUID = TypeAdapter(Guid)


def is_guid(text: str) -> bool:
    """Return whether `text` is a valid guid."""
    try:
        _GUID.validate_python(text, strict=True)
    except ValidationError:
        return False
    return True
