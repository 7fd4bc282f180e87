"""Requests to the object store: retried within a bound, and with one error for all faults."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import obstore
from django.conf import settings
from obstore.exceptions import BaseError
from obstore.store import from_url

from controlplane.storage.interface import StoreUnavailable

# A cell waits 10 s for an answer. After these times web answers that the store is unavailable.
_CLIENT: Any = {
    "connect_timeout": timedelta(seconds=2),
    "timeout": timedelta(seconds=5),
    "allow_http": True,
}
_RETRY: Any = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=4),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=1),
        "base": 2,
    },
}
PAGE = 1000  # keys of one listing or deletion: the maximum of S3
# A transfer must begin within this time.
_LINK_VALID = timedelta(minutes=15)
_BLOCK_BYTES = 256 * 1024
_PARTS_AT_ONCE = 4  # of 5 MiB each, in memory


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object: key, size in bytes, time of its last change in seconds since 1970."""

    key: str
    size: int
    changed_at: float


class Bucket:
    """An object store, from the prefix of its URL on. Thread-safe."""

    def __init__(self, url: str, **options: Any) -> None:
        """Open the store. `options`: of the library's client, instead of the defaults."""
        self.url = url
        self._store: Any = from_url(
            url,
            config=_credentials(url),
            client_options=_CLIENT | options,
            retry_config=_RETRY,
        )

    def put(self, key: str, content: bytes) -> None:
        """Write an object, which appears when it is complete. Raise StoreUnavailable."""
        with _named(key):
            obstore.put(self._store, key, content, use_multipart=False)

    def put_file(self, key: str, path: Path) -> None:
        """Write an object from a file, in parts if it is large. Raise StoreUnavailable, OSError."""
        with path.open("rb") as file, _named(key):
            obstore.put(self._store, key, file, max_concurrency=_PARTS_AT_ONCE)

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        """Return the bytes from `start` to `end`, None if there is no object.

        Raise StoreUnavailable.
        """
        with suppress(FileNotFoundError), _named(key, may_miss=True):
            if end is None:
                return bytes(obstore.get(self._store, key).bytes())[start:]
            return bytes(obstore.get_range(self._store, key, start=start, end=end))
        return None

    def find(self, key: str) -> StoredObject | None:
        """Return size and time of an object, None if there is none. Raise StoreUnavailable."""
        with suppress(FileNotFoundError), _named(key, may_miss=True):
            return _stored(obstore.head(self._store, key))
        return None

    def open(self, key: str) -> BinaryIO | None:
        """Return a reader of an object, None if there is none. Raise StoreUnavailable."""
        found = self.find(key)
        if found is None:
            return None
        return cast("BinaryIO", io.BufferedReader(_ObjectReader(self, found), _BLOCK_BYTES))

    def page(self, prefix: str, after: str = "") -> list[StoredObject]:
        """Return at most `PAGE` objects below `prefix`, by key, after the key `after`.

        Raise StoreUnavailable.
        """
        with _named(prefix):
            found = obstore.list(self._store, prefix, offset=after or None, chunk_size=PAGE)
            return sorted(map(_stored, next(iter(found), [])), key=lambda item: item.key)

    def walk(self, prefix: str) -> Iterator[StoredObject]:
        """Yield all objects below `prefix`. Raise StoreUnavailable."""
        after = ""
        while page := self.page(prefix, after):
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].key

    def folders(self, prefix: str) -> list[str]:
        """Return the next parts of the keys below `prefix` that have more parts, in order.

        Raise StoreUnavailable.
        """
        with _named(prefix):
            found = obstore.list_with_delimiter(self._store, prefix)["common_prefixes"]
        return sorted(name.rpartition("/")[2] for name in found)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Idempotent. Raise StoreUnavailable."""
        if not keys:
            return
        try:
            with _named(keys[0], may_miss=True):
                obstore.delete(self._store, list(keys))
        except FileNotFoundError:  # of a store without bulk deletion
            for key in keys:
                with suppress(FileNotFoundError), _named(key, may_miss=True):
                    obstore.delete(self._store, key)

    def delete_all(self, prefix: str) -> None:
        """Delete all objects below `prefix`. Raise StoreUnavailable."""
        while page := self.page(prefix):
            self.delete([item.key for item in page])
            if len(page) < PAGE:
                return

    def link(self, method: Literal["GET", "PUT"], key: str) -> str:
        """Return a URL that authorizes one kind of request for one key. Raise StoreUnavailable."""
        with _named(key):
            return str(obstore.sign(self._store, method, key, expires_in=_LINK_VALID))


class _ObjectReader(io.RawIOBase):
    """An object as a file that is read in ranges."""

    def __init__(self, bucket: Bucket, found: StoredObject) -> None:
        super().__init__()
        self._bucket, self._found, self._at = bucket, found, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._at, self._found.size)[whence]
        self._at = max(base + offset, 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._found.size)
        if end <= self._at:
            return 0
        content = self._bucket.read(self._found.key, self._at, end)
        if content is None:
            raise StoreUnavailable(f"{self._found.key} was deleted meanwhile")
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def bucket() -> Bucket:
    """Return the object store of the settings."""
    return open_bucket(settings.CELLRUN.store_url)


@lru_cache(maxsize=8)
def open_bucket(url: str) -> Bucket:
    """Return the object store at a URL, with the process's connections to it."""
    return Bucket(url)


def _credentials(url: str) -> Any:
    """Return the credentials of the settings, which may be in files, as options of the library."""
    read = settings.CELLRUN
    if url.startswith("az:"):
        found = {"account_key": read.azure_account_key}
    elif url.startswith("s3:"):
        found = {
            "access_key_id": read.aws_access_key_id,
            "secret_access_key": read.aws_secret_access_key,
            "session_token": read.aws_session_token,
        }
    else:
        found = {}
    return {name: value for name, value in found.items() if value}


def _stored(found: Any) -> StoredObject:
    return StoredObject(found["path"], found["size"], found["last_modified"].timestamp())


@contextmanager
def _named(key: str, *, may_miss: bool = False) -> Iterator[None]:
    """Raise StoreUnavailable with the key for every error.

    `may_miss`: raise FileNotFoundError if there is no such object.
    """
    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        if may_miss and isinstance(error, FileNotFoundError):
            raise
        first = str(error).strip().partition("\n")[0]
        raise StoreUnavailable(f"the object store does not answer for {key}: {first}") from error
