"""File transfers of an attempt: bounded, checked, retried, aborted by a stop order.

The destination of an attempt's files is recorded in its workspace, so that a later process of the
cell knows it when web does not return it any more.
"""

import base64
import errno
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import requests

from controlplane.contract.artifacts import PIECE_BYTES, path_of
from controlplane.contract.messages.reports import INPUT_CORRUPT
from controlplane.contract.states import FailureKind
from workers.attempt.attempt import STOP_CHECK_SECONDS, AttemptRun, DriverClosed
from workers.attempt.outcome import DISK, INPUTS, OUTPUTS, STOPPED, AttemptFailed
from workers.control_api import HTTP_SECONDS, ControlPlaneRefused, ControlPlaneUnavailable
from workers.remote_files import StorageAway, StorageRefused, has_room, join, without_secrets

# Space left free on the disk; on a small disk a tenth.
FREE_BYTES = 64 * 2**20
_CHECK_BYTES = 16 * 2**20
# After the last piece, web syncs the whole file to its disk and reads it again.
LARGE_BYTES = 16 * 2**20
LARGE_SECONDS = 120.0
# For one block of an upload to an object store, which may slow down its clients.
BLOCK_SECONDS = 30.0
UPLOAD_BYTES = 256 * 1024
SECONDS_PER_GIB = 30.0
_USER, _SYSTEM = FailureKind.USER, FailureKind.SYSTEM


class DiskAllowance:
    """Count the bytes that an attempt puts on the cell's disk, up to a limit."""

    def __init__(self, what: str, folder: Path, limit: int, reason: str) -> None:
        self._what, self._folder, self._limit, self._reason = what, folder, limit, reason
        self.taken = 0
        self._checked_at = -_CHECK_BYTES

    def take(self, count: int) -> None:
        """Count `count` more bytes. Raise AttemptFailed if the limit or the disk is exceeded."""
        self.taken += count
        if self.taken > self._limit:
            message = f"{self._what}: more than the {self._limit} bytes that this cell accepts"
            raise AttemptFailed(_USER, self._reason, message)
        if abs(self.taken - self._checked_at) >= _CHECK_BYTES:
            spare = min(FREE_BYTES, shutil.disk_usage(self._folder).total // 10)
            if not has_room(self._folder, spare + count):
                raise AttemptFailed(_SYSTEM, DISK, f"{self._what}: no space left on this cell")
            self._checked_at = self.taken

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Forget what was taken inside if the block raises."""
        before = self.taken
        try:
            yield
        except BaseException:
            self.taken = before
            raise


def fetch(
    attempt: AttemptRun,
    what: str,
    url: str,
    target: Path,
    allowance: DiskAllowance,
    *,
    named: bool,
    sha256: str,
) -> None:
    """Fetch `url` to `target`, once. `named`: a URL of the submitter, which may not exist.

    `sha256`: the expected checksum; may be empty. Raise AttemptFailed.
    """
    digest = hashlib.sha256()

    def failed(kind: FailureKind, text: str, reason: str = INPUTS) -> AttemptFailed:
        return AttemptFailed(kind, reason, f"{what}: {without_secrets(text, url)}")

    with allowance.undone_on_error():
        try:
            with open(target, "wb") as file:
                for piece in attempt.context.storage.read(
                    url, named=named, pool_networks=attempt.launch.spec.input_networks
                ):
                    attempt.check()
                    allowance.take(len(piece))
                    digest.update(piece)
                    file.write(piece)
        except StorageRefused as error:
            raise failed(_USER, str(error)) from error
        except StorageAway as error:
            raise failed(_SYSTEM, str(error)) from error
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise failed(_SYSTEM, str(error), DISK if is_full else INPUTS) from error
        if sha256 and digest.hexdigest() != sha256.lower():
            text = f"sha256 is {digest.hexdigest()}, {sha256} was expected"
            raise failed(_USER, text) if named else failed(_SYSTEM, text, INPUT_CORRUPT)


class OutputTransfer:
    """Stores outputs of an ended process, for `seconds` at most, or until a stop aborts it."""

    def __init__(
        self, attempt: AttemptRun, *, seconds: float = float("inf"), may_break: bool = True
    ) -> None:
        self.attempt = attempt
        self._end = time.monotonic() + seconds
        self._may_break = may_break

    def check(self) -> None:
        """Raise AttemptFailed after a stop or the time limit, DriverClosed after a close."""
        if self.attempt.context.closed.is_set():
            raise DriverClosed
        if self._may_break and self.attempt.is_broken_off:
            raise AttemptFailed(None, STOPPED, "stopped while its outputs were being stored", 0)
        if time.monotonic() > self._end:
            raise AttemptFailed(_SYSTEM, OUTPUTS, "storing the outputs took too long")

    def pause(self, seconds: float) -> None:
        """Wait between two tries. Raise like `check`."""
        end = time.monotonic() + seconds
        self.check()
        while (rest := end - time.monotonic()) > 0:
            self.attempt.context.closed.wait(min(rest, STOP_CHECK_SECONDS))
            self.check()

    def put(
        self, name: str, source: Callable[[], BinaryIO], url: str | None = None
    ) -> dict[str, object]:
        """Store the artifact `name`, at `url` if that is given; return its description.

        Raise AttemptFailed.
        """
        with source() as file:
            digest, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
            for piece in iter(lambda: file.read(PIECE_BYTES), b""):
                self.check()
                digest.update(piece)
                md5.update(piece)
                size += len(piece)
            sha256 = digest.hexdigest()
            file.seek(0)
            base = load_output_base(self.attempt) if url is None else None
            if url is None and base is not None:
                url = join(base, name)
            if url is None:
                uri = self._put_to_store(name, file, size, sha256, md5.digest())
            else:
                uri = self._put_to_storage(url, name, file)
        return {"name": name, "size": size, "sha256": sha256, "uri": uri}

    def _put_to_store(self, name: str, file: BinaryIO, size: int, sha256: str, md5: bytes) -> str:
        """Store a file with web: a large one by link if web has an object store."""
        path = path_of(self.attempt.uid, name)
        try:
            offset = self._announce(path, file, size, sha256, md5) if size > PIECE_BYTES else 0
            self._put_to_web(path, offset, file, size, sha256)
        except ControlPlaneRefused as error:
            kind = _USER if error.status in (413, 507) else _SYSTEM
            raise AttemptFailed(kind, OUTPUTS, f"{name}: {error}") from error
        except (ControlPlaneUnavailable, ValueError, KeyError, TypeError) as error:
            raise AttemptFailed(_SYSTEM, OUTPUTS, f"{name}: {error}") from error
        return path

    def _announce(self, path: str, file: BinaryIO, size: int, sha256: str, md5: bytes) -> int:
        """Announce a file, and send it to the link in the answer; return the stored bytes."""
        web = self.attempt.context.web
        answer = json.loads(web.call("POST", f"{path}?size={size}&sha256={sha256}", b""))
        offset = int(answer["size"])
        if answer.get("url") is None or offset >= size:
            return offset
        headers = {**answer["headers"], "Content-MD5": base64.b64encode(md5).decode()}
        upload_to_link(
            answer["url"],
            headers,
            WatchedUpload(file, size, self.check),
            seconds=self._seconds_of_last(size),
        )
        return size

    def _put_to_web(self, path: str, offset: int, file: BinaryIO, size: int, sha256: str) -> None:
        """Send the file from `offset` on in pieces; the last one may be empty."""
        has_sent = False
        while offset < size or not has_sent:
            self.check()
            has_sent = True
            file.seek(offset)
            query = f"?offset={offset}&size={size}&sha256={sha256}"
            piece = file.read(PIECE_BYTES)
            is_last = offset + len(piece) >= size
            seconds = self._seconds_of_last(size) if is_last else HTTP_SECONDS
            web = self.attempt.context.web
            answer = json.loads(web.call("PUT", path + query, piece, seconds))
            if answer["size"] == offset and piece:
                raise ControlPlaneUnavailable("it accepted no bytes")
            offset = answer["size"]

    def _seconds_of_last(self, size: int) -> float:
        """Return the timeout for the last piece of a file of `size` bytes."""
        if size < LARGE_BYTES:
            return HTTP_SECONDS
        left = max(self._end - time.monotonic(), HTTP_SECONDS)
        return min(LARGE_SECONDS + SECONDS_PER_GIB * size / 2**30, left)

    def _put_to_storage(self, url: str, name: str, file: BinaryIO) -> str:
        def failed(kind: FailureKind, error: Exception, reason: str = OUTPUTS) -> AttemptFailed:
            text = without_secrets(str(error), url)
            return AttemptFailed(kind, reason, f"{name}: {text}")

        try:
            for _ in self.attempt.context.storage.write(url, file):
                self.check()
        except StorageRefused as error:
            raise failed(_USER, error) from error
        except StorageAway as error:
            raise failed(_SYSTEM, error) from error
        except OSError as error:
            raise failed(_SYSTEM, error, DISK) from error
        return url


class WatchedUpload:
    """A body of known size that checks for a stop at each block."""

    def __init__(self, file: BinaryIO, size: int, check: Callable[[], None]) -> None:
        file.seek(0)
        self._file, self._size, self._check = file, size, check

    def __len__(self) -> int:
        return self._size

    def read(self, _: int = -1) -> bytes:
        """Return the next block. Raise like `check`."""
        self._check()
        return self._file.read(UPLOAD_BYTES)


def upload_to_link(
    url: str, headers: Mapping[str, str], body: WatchedUpload, *, seconds: float
) -> None:
    """Send a file to a link of the control plane. Raise ControlPlaneUnavailable."""
    with requests.Session() as session:
        session.trust_env = False
        try:
            # The first limit also holds for each write, the second for the answer.
            answer = session.put(
                url,
                data=body,
                headers=headers,
                timeout=(BLOCK_SECONDS, seconds),
                allow_redirects=False,
            )
        except requests.RequestException as error:
            text = without_secrets(str(error), url)
            raise ControlPlaneUnavailable(f"the object store: {text}") from error
        if answer.status_code not in (200, 201):
            text = f"HTTP status {answer.status_code} of the object store"
            raise ControlPlaneUnavailable(f"{text}: {without_secrets(answer.text[:200], url)}")


def save_output_base(attempt: AttemptRun) -> None:
    """Record the output base of this attempt from its launch context."""
    path = _base_file(attempt)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"base": attempt.launch_context.output_base}), encoding="utf-8")
    draft.replace(path)


def load_output_base(attempt: AttemptRun) -> str | None:
    """Return the base URL of this attempt's outputs; None: the control plane's store.

    Raise AttemptFailed.
    """
    try:
        base = json.loads(_base_file(attempt).read_text(encoding="utf-8"))["base"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"the destination of its outputs is unknown: {error}"
        raise AttemptFailed(_SYSTEM, OUTPUTS, message) from error
    return None if base is None else str(base)


def _base_file(attempt: AttemptRun) -> Path:
    return attempt.workspace / "kept.json"
