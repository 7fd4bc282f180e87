"""Read and write files at URLs of submitters, where the cell allows it.

* http and https: read only, without proxy and netrc, and only from addresses that
  `controlplane.contract.addresses` permits. All addresses of a host are checked before each
  connection, so neither a redirect nor a changing DNS name can bypass this, and a refusal does not
  depend on whether a local port is open.
* file: below the cell's allowed roots; links out of them are refused.
* other schemes: by fsspec, if the cell allows them and their package is installed, with the access
  rights of this process.
"""

import errno
import ipaddress
import os
import re
import shutil
import socket
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO
from urllib.parse import quote, unquote, urlsplit

import fsspec
import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
)

from controlplane.contract.addresses import Network, refuse_address

HTTP_SECONDS = (3.05, 30.0)  # to connect, and between two reads
PIECE_BYTES = 256 * 1024
MAX_REDIRECTS = 5
WEB = ("http", "https")
_OF_S3 = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "token",
}
_OF_AZURE = {"AZURE_STORAGE_ACCOUNT_KEY": "account_key"}
CREDENTIALS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {**dict.fromkeys(("s3", "s3a"), _OF_S3), **dict.fromkeys(("az", "abfs", "abfss"), _OF_AZURE)}
)
"""Protocol -> variable -> option of its package."""
_NONE: Mapping[str, str] = MappingProxyType({})
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# HTTP status codes after which the request may be repeated.
_RETRYABLE = (408, 425, 429)
_OUTSIDE = "it is not below a folder that this cell allows"
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DRAFT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_QUERY = re.compile(r"\?[^\s?]\S*")
_LOGIN = re.compile(r"//[^\s/@]+@")


class StorageAway(Exception):
    """The server does not answer, or with an error: the request may be repeated."""


class StorageRefused(Exception):
    """The file does not exist, or access is not allowed: a retry is useless."""


class Storage:
    """Reads and writes files for one cell. Thread-safe."""

    def __init__(
        self,
        *,
        file_roots: Sequence[Path] = (),
        file_systems: Sequence[str] = (),
        credentials: Mapping[str, str] = _NONE,
        allowed_networks: Sequence[Network] | None = (),
        sign: Callable[[str], Mapping[str, str]] = lambda _: {},
    ) -> None:
        """Create the storage. `file_systems`: allowed protocols of fsspec.

        `credentials`: variable -> value, of those in `CREDENTIALS`; without one, the package of the
        protocol uses what it finds.

        `allowed_networks`: networks that URLs of submitters may access although not public; None:
        those that the pool of the task permits.
        `sign`: returns the headers that a link of the control plane needs.
        """
        self._sign = sign
        self._roots = [Path(os.path.realpath(root)) for root in file_roots]
        self._options = {
            scheme: {
                option: credentials[name] for name, option in options.items() if name in credentials
            }
            for scheme, options in CREDENTIALS.items()
        }
        self._file_systems = frozenset(file_systems) - {*WEB, "file", "local"}
        self._networks = None if allowed_networks is None else tuple(allowed_networks)

    def read(self, url: str, *, named: bool, pool_networks: Sequence[str] = ()) -> Iterator[bytes]:
        """Yield the content in pieces. Raise StorageAway, StorageRefused.

        `named`: a URL of the submitter; False: a link of the control plane, which is trusted.
        `pool_networks`: those that the pool permits, unless the cell has its own.
        """
        scheme = scheme_of(url)
        if scheme in WEB:
            adapter = self._adapter(pool_networks) if named else None
            yield from self._read_web(url, adapter)
        elif scheme == "file":
            with closing(self._open_file(url)) as file:
                yield from iter(lambda: file.read(PIECE_BYTES), b"")
        else:
            system, path = self._file_system(url)
            try:
                with system.open(path, "rb") as remote:
                    yield from iter(lambda: remote.read(PIECE_BYTES), b"")
            except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
                raise StorageRefused(_error_text(error)) from error
            except Exception as error:  # of the library behind fsspec
                raise StorageAway(_error_text(error)) from error

    def write(self, url: str, source: BinaryIO) -> Generator[int, None, None]:
        """Write `source` to `url`; yield the number of bytes so far after each piece.

        The file appears at the end; an aborted write leaves nothing. Raise StorageAway,
        StorageRefused; OSError if a disk is full.
        """
        scheme = scheme_of(url)
        if scheme in WEB:
            raise StorageRefused(f"{scheme} URLs cannot be written")
        if scheme == "file":
            yield from self._write_file(url, source)
            return
        system, path = self._file_system(url)
        try:
            remote = system.open(path, "wb")
            try:
                yield from _copy(source, remote)
            except BaseException:
                _discard(remote)
                raise
            remote.close()
        except GeneratorExit:
            raise
        except (FileNotFoundError, PermissionError) as error:
            raise StorageRefused(_error_text(error)) from error
        except Exception as error:
            raise StorageAway(_error_text(error)) from error

    def _adapter(self, pool_networks: Sequence[str]) -> HTTPAdapter:
        """Return an adapter that connects to addresses that the cell, or else the pool, permits."""
        if self._networks is not None:
            return _checking_adapter(self._networks, "CELLRUN_CELL_ALLOWED_NETWORKS does")
        try:
            networks = tuple(ipaddress.ip_network(text) for text in pool_networks)
        except ValueError as error:
            raise StorageRefused(f"the networks of the pool: {error}") from None
        return _checking_adapter(networks, "input_networks of the pool do")

    def _read_web(self, url: str, adapter: HTTPAdapter | None) -> Iterator[bytes]:
        with _LinkSession() as session:
            session.trust_env = False
            session.max_redirects = MAX_REDIRECTS
            named = adapter is not None
            if adapter is not None:
                session.mount("http://", adapter)
                session.mount("https://", adapter)
            try:
                headers = {} if named else dict(self._sign(url))
                with session.get(url, stream=True, timeout=HTTP_SECONDS, headers=headers) as answer:
                    if answer.status_code >= 400:
                        is_final = named and answer.status_code < 500
                        is_final = is_final and answer.status_code not in _RETRYABLE
                        kind = StorageRefused if is_final else StorageAway
                        raise kind(f"HTTP status {answer.status_code} {answer.reason}")
                    yield from answer.iter_content(PIECE_BYTES)
            except (
                requests.exceptions.InvalidURL,
                requests.exceptions.InvalidSchema,
                requests.TooManyRedirects,
            ) as error:
                raise StorageRefused(without_secrets(str(error), url)) from error
            except requests.RequestException as error:
                raise StorageAway(without_secrets(str(error), url)) from error

    def _path(self, url: str) -> Path:
        parts = urlsplit(url)
        path = unquote(parts.path)
        if parts.netloc or parts.query or parts.fragment or "\0" in path or not path.strip("/"):
            raise StorageRefused("a file's URL is file:///path, without host and query")
        if ".." in path.split("/"):
            raise StorageRefused("a path with .. is not allowed")
        if not self._roots:
            raise StorageRefused("this cell allows no files of its own machine")
        return Path(path)

    def _open_file(self, url: str) -> BinaryIO:
        path = self._path(url)
        self._check_root(path)
        try:
            file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        except OSError as error:
            raise StorageRefused(_error_text(error)) from error
        try:
            # Again for the opened file: a link may have changed meanwhile.
            self._check_root(Path(f"/proc/self/fd/{file.fileno()}"))
            if not Path(f"/proc/self/fd/{file.fileno()}").is_file():
                raise StorageRefused("it is not a regular file")
        except BaseException:
            file.close()
            raise
        return file

    def _check_root(self, path: Path) -> None:
        real = Path(os.path.realpath(path))
        if not any(real.is_relative_to(root) for root in self._roots):
            raise StorageRefused(_OUTSIDE)

    def _write_file(self, url: str, source: BinaryIO) -> Iterator[int]:
        path = self._path(url)
        self._check_root(path)
        draft = f".{uuid.uuid4().hex}.draft"
        try:
            with self._folder(path.parent) as folder:
                try:
                    with open(os.open(draft, _DRAFT, 0o666, dir_fd=folder), "wb") as file:
                        yield from _copy(source, file)
                        file.flush()
                        os.fsync(file.fileno())
                    os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
                finally:
                    with suppress(OSError):
                        os.unlink(draft, dir_fd=folder)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
            raise StorageRefused(_error_text(error)) from error

    @contextmanager
    def _folder(self, path: Path) -> Iterator[int]:
        """Create and open the folder at `path`, below a root. Raise OSError, StorageRefused.

        Links are resolved once; a link that is created later is not followed.
        """
        real = Path(os.path.realpath(path))
        root = next((root for root in self._roots if real.is_relative_to(root)), None)
        if root is None:
            raise StorageRefused(_OUTSIDE)
        root.mkdir(parents=True, exist_ok=True)
        found = os.open(root, _FOLDER)
        try:
            for part in real.relative_to(root).parts:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=found)
                inner = os.open(part, _FOLDER, dir_fd=found)
                os.close(found)
                found = inner
            yield found
        finally:
            os.close(found)

    def _file_system(self, url: str) -> tuple[Any, str]:
        scheme = scheme_of(url)
        if "::" in url:
            raise StorageRefused("chained URLs (::) are not allowed")
        if scheme not in self._file_systems:
            allowed = ", ".join(sorted(self._file_systems | set(WEB)))
            raise StorageRefused(f"this cell does not allow {scheme} URLs, only {allowed}")
        try:
            system = fsspec.filesystem(scheme, **self._options.get(scheme, {}))
            return system, str(system._strip_protocol(url))
        except ImportError as error:
            raise StorageRefused(f"this cell lacks a package for {scheme}: {error}") from error
        except ValueError as error:
            raise StorageRefused(str(error)) from error
        except Exception as error:
            raise StorageAway(_error_text(error)) from error


class _LinkSession(requests.Session):
    """Sends the headers that sign a link to the control plane only, not where it redirects to."""

    def rebuild_auth(
        self, prepared_request: requests.PreparedRequest, response: requests.Response
    ) -> None:
        """Remove the headers of a redirected request that authenticate the first one."""
        for name in [name for name in prepared_request.headers if name.startswith("X-Cellrun-")]:
            del prepared_request.headers[name]
        super().rebuild_auth(prepared_request, response)  # type: ignore[no-untyped-call]


def scheme_of(url: str) -> str:
    """Return the scheme of a URL in lower case."""
    return url.partition("://")[0].lower()


def join(base: str, name: str) -> str:
    """Return the URL of the artifact `name` below `base`."""
    return f"{base.rstrip('/')}/{quote(name) if scheme_of(base) == 'file' else name}"


def has_room(folder: Path, least: int) -> bool:
    """Return whether the disk of `folder` has `least` free bytes."""
    return shutil.disk_usage(folder).free >= least


def without_secrets(text: str, url: str) -> str:
    """Return `text` without logins and queries of URLs, which may contain secrets.

    This includes those of `url`, and of other URLs, such as a redirect.
    """
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    for hidden in (parts.query, login, login.partition(":")[2]):
        text = text.replace(hidden, "…") if hidden else text
    return _LOGIN.sub("//…@", _QUERY.sub("?…", text))


def _checking_adapter(allowed: tuple[Network, ...], rule: str) -> HTTPAdapter:
    """Return an adapter that connects to permitted addresses only.

    `rule`: what decides about addresses that are not public, with "do" or "does".
    """

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _connect(self, super()._new_conn, allowed, rule)

    class Secure(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _connect(self, super()._new_conn, allowed, rule)

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Secure

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, **options)
            self.poolmanager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}

    return Adapter()


def _connect(
    connection: HTTPConnection,
    connect: Callable[[], socket.socket],
    allowed: Sequence[Network],
    rule: str,
) -> socket.socket:
    """Resolve the host of `connection` once, check the addresses, and connect to one of them."""
    name = connection._dns_host
    error: HTTPError | None = None
    for address in _find_addresses(connection, name, allowed, rule):
        try:
            connection._dns_host = address
            return connect()
        except (NewConnectionError, ConnectTimeoutError) as failed:
            error = failed
        finally:
            connection._dns_host = name
    raise error or NewConnectionError(connection, "the host has no address")


def _find_addresses(
    connection: HTTPConnection, name: str, allowed: Sequence[Network], rule: str
) -> list[str]:
    """Return the addresses of the host `name`. Raise StorageRefused if one is not permitted."""
    try:
        found = socket.getaddrinfo(name, connection.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise NameResolutionError(connection.host, connection, error) from error
    except UnicodeError as error:
        raise StorageRefused("the host is not a name that can be resolved") from error
    addresses = [str(address[0]) for *_, address in found]
    for address in addresses:
        why = refuse_address(ipaddress.ip_address(address.partition("%")[0]), allowed)
        if why is not None:
            raise StorageRefused(
                f"this cell does not fetch from {connection.host}: {why}, and {rule} not allow it"
            )
    return addresses


def _copy(source: BinaryIO, target: Any) -> Iterator[int]:
    done = 0
    while piece := source.read(PIECE_BYTES):
        target.write(piece)
        done += len(piece)
        yield done


def _discard(remote: Any) -> None:
    """Discard a partly written file, which a close would make appear truncated."""
    with suppress(Exception):  # not every library supports it
        remote.discard()
    with suppress(AttributeError):
        remote.closed = True  # otherwise garbage collection closes it


def _error_text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
