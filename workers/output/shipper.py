"""Upload the output of attempts to the control plane exactly once, across restarts of both sides.

Every PUT has an offset, and the server answers with the size of its copy, which is the next offset.
So the cell stores no progress, except an empty file `shipped` in the folder of an attempt whose
output has arrived completely. Small new outputs are first sent in a batch.
"""

import collections
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import requests
import structlog

from controlplane.contract.codec import MalformedMessage
from controlplane.contract.output_batch import (
    MAX_PIECES,
    RESPONSE_SECONDS,
    BatchAnswer,
    OutputPiece,
    pack_pieces,
    read_answer,
)
from controlplane.contract.wire import keys
from workers import clock
from workers.output.batches import MAX_BATCH_BYTES, MAX_SMALL_BYTES, OutputBatches, OutputUntried
from workers.signatures import signed_headers

log = structlog.get_logger(__name__)

STREAMS = ("stdout", "stderr")
ROUND_SECONDS = 0.5  # between uploads of new output: a follower gets a line within a second
SHORT_SECONDS = 0.25  # attempts that run for less upload their output at their end only
MAX_PAUSE_SECONDS = 30.0  # between tries of an output that cannot be uploaded
MAX_TOGETHER = MAX_PIECES // len(STREAMS)  # attempts of one request
CHUNK_BYTES = 1024 * 1024
HTTP_SECONDS = (3.05, 10.0)
KEPT_SECONDS = 24 * 3600.0  # how long folders of ended attempts stay on the machine
SWEEP_SECONDS = 600.0
SHIPPED = "shipped"


class UploadDeferred(Exception):
    """The control plane did not accept a chunk, or did not respond: it is sent again later."""


class UploadNotBegun(UploadDeferred):
    """No request was sent."""


class StreamEnded(Exception):
    """The control plane stores no more of this stream."""


class AttemptUnknown(Exception):
    """The control plane does not know the attempt (any more)."""


@dataclass(slots=True)
class Upload:
    """The upload of one attempt's output."""

    uid: str
    folder: Path
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    ended: set[str] = field(default_factory=set)  # streams of which no more is stored
    unwanted: bool = False  # the control plane does not know the attempt (any more)
    is_alone: bool = False  # its last request failed: the next one is for it alone
    complete: bool = False  # no more output will be written
    since: float = 0.0  # when its upload began
    pause: float = 0.0  # grows with each try in a row that was deferred
    try_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class LogShipper:
    """Uploads new output from one thread, and the last output of attempts that end in batches."""

    def __init__(
        self,
        *,
        control_url: str,
        cell: str,
        key: bytes,
        folder: Path,
        now: Callable[[], float] = clock.wall_seconds,
        round_seconds: float = ROUND_SECONDS,
        short_seconds: float = SHORT_SECONDS,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an uploader; `folder` has one folder per attempt.

        With an empty `control_url` nothing is uploaded.
        """
        self._url = control_url
        self._cell = cell
        self._key = keys.mac_key(key, keys.UPLOAD)
        self._folder = folder
        self._now = now
        self._round_seconds = round_seconds
        self._short_seconds = short_seconds
        self._timer = timer
        self._lock = threading.Lock()
        self._uploads: dict[str, Upload] = {}
        self._closed = threading.Event()
        self._session = requests.Session()
        self._session.trust_env = (
            False  # no proxy and no netrc between a cell and its control plane
        )
        self._session.mount(
            control_url or "http://", requests.adapters.HTTPAdapter(pool_maxsize=16)
        )
        self._batches = OutputBatches(self._post_batch)
        self._thread = threading.Thread(target=self._serve, name="log-shipper", daemon=True)

    def start(self) -> None:
        """Start the thread, which also uploads unsent output of an earlier process of this cell."""
        for folder in self._folders():
            if not (folder / SHIPPED).exists():
                with self._lock:
                    upload = Upload(folder.name, folder, complete=True)
                    self._uploads.setdefault(folder.name, upload)
        self._thread.start()

    def watch(self, uid: str, folder: Path) -> None:
        """Upload the output in `folder` continuously."""
        with self._lock:
            self._uploads[uid] = Upload(uid, folder, since=self._timer())
            # An adopted attempt may write more after an earlier process uploaded all.
            (folder / SHIPPED).unlink(missing_ok=True)

    def finish(self, uid: str, seconds: float) -> None:
        """Upload the rest of a complete output: here for `seconds` at most, then in the thread.

        A small rest is first sent together with those of other attempts that end.
        """
        ends_at = self._timer() + seconds
        with self._lock:
            upload = self._uploads.get(uid)
        if upload is None:
            return
        upload.complete = True
        if not self._url or seconds <= 0:
            return
        try:
            if not upload.lock.acquire(timeout=seconds):
                raise UploadNotBegun("another thread is sending it")
            try:
                self._send_rest(upload, ends_at)
            finally:
                upload.lock.release()
        except (UploadDeferred, OSError) as error:
            upload.is_alone |= not isinstance(error, UploadNotBegun)
            log.info("last_output_delayed", cell=self._cell, attempt=uid, error=str(error))

    def close(self) -> None:
        """Stop uploading; the next process of this cell uploads the rest."""
        self._closed.set()
        self._batches.close(HTTP_SECONDS[0])
        if self._thread.is_alive():
            self._thread.join(HTTP_SECONDS[0])
        self._session.close()

    def _serve(self) -> None:
        swept_at = self._timer()
        while not self._closed.wait(self._round_seconds):
            try:
                if self._timer() - swept_at > SWEEP_SECONDS:
                    swept_at = self._timer()
                    self.sweep()
                self.send_round()
            except Exception:
                log.exception("output_round_failed", cell=self._cell)

    def send_round(self) -> None:
        """Upload one chunk of the new output of every attempt, small ones together.

        Outputs for which the control plane has no time come first in the next round. An output
        that cannot be uploaded has a pause of its own, is then uploaded alone, and delays the
        others by its request.
        """
        with self._lock:
            uploads = collections.deque(self._uploads.values())
        while uploads and not self._closed.is_set():
            for upload in self._send_together(uploads):
                if self._closed.is_set():
                    return
                if self._is_due(upload) and upload.lock.acquire(blocking=False):
                    try:
                        self._try(upload)
                    finally:
                        upload.lock.release()

    def _send_together(self, uploads: collections.deque[Upload]) -> list[Upload]:
        """Take uploads from the left, as many as one request may have, and send what is new.

        Return those to upload alone: large ones, those that have failed before, and those that are
        not stored.
        """
        held, alone, size = list[Upload](), list[Upload](), 0
        pieces: dict[str, list[OutputPiece]] = {}
        try:
            while (
                uploads and len(held) < MAX_TOGETHER and size <= MAX_BATCH_BYTES - MAX_SMALL_BYTES
            ):
                upload = uploads.popleft()
                # `finish` may soon send a young output together with others, or is sending it.
                if not self._is_due(upload) or not upload.lock.acquire(blocking=False):
                    continue
                held.append(upload)
                found = None if upload.is_alone or not self._url else _read_small_pieces(upload)
                if found and self._uploads.get(upload.uid) is upload:
                    pieces[upload.uid] = found
                    size += sum(len(piece.content) for piece in found)
                    continue
                held.pop().lock.release()
                if found is None or upload.complete:
                    alone.append(upload)
            answer = self._send_pieces(held, pieces)
        finally:
            for upload in held:
                upload.lock.release()
        named = answer.stored | answer.untried
        return alone + [upload for upload in held if upload.uid not in named]

    def _send_pieces(
        self, uploads: Sequence[Upload], pieces: Mapping[str, Sequence[OutputPiece]]
    ) -> BatchAnswer:
        """Send the pieces of these uploads in one request, if there are several.

        If it fails, all have a pause, after which each is uploaded alone. The caller holds their
        locks.
        """
        if len(uploads) < 2:
            return BatchAnswer()
        try:
            answer = self._post_batch([piece for found in pieces.values() for piece in found])
        except UploadDeferred as error:
            for upload in uploads:
                self._defer(upload, error)
            return BatchAnswer()
        stored = [upload for upload in uploads if upload.uid in answer.stored]
        for upload in stored:
            upload.sent |= {it.stream: it.offset + len(it.content) for it in pieces[upload.uid]}
        with self._lock:  # the others precede them in the next round
            for upload in stored:
                if self._uploads.get(upload.uid) is upload:
                    self._uploads[upload.uid] = self._uploads.pop(upload.uid)
        return answer

    def _is_due(self, upload: Upload) -> bool:
        now = self._timer()
        is_young = not upload.complete and now - upload.since < self._short_seconds
        return not is_young and now >= upload.try_at

    def _try(self, upload: Upload) -> None:
        """Upload a chunk of each stream, or set the pause of the upload."""
        if self._uploads.get(upload.uid) is not upload:
            return  # `finish` has sent it meanwhile
        if not self._url:
            if upload.complete:
                self._forget(upload)
            return
        try:
            self._send_some(upload, self._timer() + sum(HTTP_SECONDS))
            upload.pause, upload.is_alone = 0.0, False
        except (UploadDeferred, OSError) as error:
            self._defer(upload, error)

    def _defer(self, upload: Upload, error: Exception) -> None:
        """Set the pause of an upload that failed."""
        upload.is_alone = True
        if not upload.pause:
            log.warning("output_delayed", cell=self._cell, attempt=upload.uid, error=str(error))
        upload.pause = min(max(2 * upload.pause, self._round_seconds), MAX_PAUSE_SECONDS)
        upload.try_at = self._timer() + upload.pause

    def sweep(self) -> None:
        """Delete the output of attempts that ended long ago."""
        oldest = self._now() - KEPT_SECONDS
        with self._lock:
            watched = {uid for uid, upload in self._uploads.items() if not upload.complete}
        for folder in self._folders():
            if folder.name not in watched and folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)
                with self._lock:
                    self._uploads.pop(folder.name, None)

    def _folders(self) -> list[Path]:
        return [path for path in self._folder.glob("*") if path.is_dir()]

    def _send_rest(self, upload: Upload, ends_at: float) -> None:
        """Upload what is left of a complete output. Raise UploadDeferred."""
        pieces, on_stored = _read_small_pieces(upload), partial(self._forget, upload)
        while pieces and self._timer() < ends_at:
            try:
                if self._batches.store(pieces, ends_at - self._timer(), on_stored):
                    return
                break
            except OutputUntried:
                continue
            except TimeoutError:
                raise UploadDeferred("no response in time") from None
        while self._timer() < ends_at:
            if self._send_some(upload, ends_at):
                return
        raise UploadNotBegun("no time is left")

    def _post_batch(self, pieces: Sequence[OutputPiece]) -> BatchAnswer:
        """Send pieces in one request.

        Raise UploadDeferred if the control plane did not respond or is overloaded: it should not
        get a request of each attempt now.
        """
        url, body = f"{self._url}/api/v1/logs:batch", pack_pieces(pieces)
        answer = self._request("POST", url, body, RESPONSE_SECONDS)
        if answer.status_code == 429 or answer.status_code >= 500:
            raise UploadDeferred(f"HTTP status {answer.status_code} for a batch")
        try:
            return read_answer(answer.json()) if answer.status_code == 200 else BatchAnswer()
        except (ValueError, MalformedMessage):
            return BatchAnswer()

    def _send_some(self, upload: Upload, ends_at: float) -> bool:
        """Upload a chunk of each stream; return whether all output was uploaded.

        No request begins after `ends_at`. The caller holds the lock. Raise UploadDeferred.
        """
        complete = upload.complete  # read before the files, which are then complete
        has_more = False
        for stream in STREAMS:
            if not upload.unwanted and stream not in upload.ended:
                has_more |= self._send_chunk(upload, stream, ends_at)
        if complete and not has_more:
            self._forget(upload)
        return not has_more

    def _send_chunk(self, upload: Upload, stream: str, ends_at: float) -> bool:
        """Upload the next chunk of `stream`; return whether there is more. Raise UploadDeferred."""
        offset = upload.sent[stream]
        chunk = _read_piece(upload.folder / stream, offset, CHUNK_BYTES + 1)
        if not chunk:
            return False
        seconds = ends_at - self._timer()
        if seconds <= 0:
            raise UploadNotBegun("no time is left")
        try:
            size = self._put(upload, stream, chunk[:CHUNK_BYTES], seconds)
        except StreamEnded:
            upload.ended.add(stream)  # the other stream has a limit of its own
            return False
        except AttemptUnknown:
            upload.unwanted = True
            return False
        upload.sent[stream] = size
        return size != offset + len(chunk)

    def _put(self, upload: Upload, stream: str, chunk: bytes, seconds: float) -> int:
        """Upload a chunk; return the server's size.

        Raise UploadDeferred, StreamEnded, AttemptUnknown.
        """
        offset = upload.sent[stream]
        url = f"{self._url}/api/v1/attempts/{upload.uid}/logs/{stream}?offset={offset}"
        answer = self._request("PUT", url, chunk, seconds)
        if answer.status_code == 410:
            raise StreamEnded
        if answer.status_code == 404:
            raise AttemptUnknown
        if answer.status_code not in (200, 409):
            raise UploadDeferred(f"HTTP status {answer.status_code} for attempt {upload.uid}")
        try:
            size = answer.json()["size"]
        except (ValueError, KeyError, TypeError) as error:
            raise UploadDeferred(f"an answer without a size: {error}") from error
        if not isinstance(size, int) or size < 0:
            raise UploadDeferred(f"the answer's size is {size!r}")
        return size

    def _request(self, method: str, url: str, body: bytes, seconds: float) -> requests.Response:
        """Send a signed request. Raise UploadDeferred."""
        try:
            return self._session.request(
                method,
                url,
                data=body,
                headers=signed_headers(self._key, self._cell, url, body, int(self._now())),
                timeout=(min(HTTP_SECONDS[0], seconds), min(HTTP_SECONDS[1], seconds)),
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise UploadDeferred(str(error)) from error

    def _forget(self, upload: Upload) -> None:
        with self._lock:
            if self._uploads.get(upload.uid) is not upload:
                return
            del self._uploads[upload.uid]
            try:
                if upload.folder.exists():  # without output there may be none
                    (upload.folder / SHIPPED).touch()
            except OSError:
                log.info("output_folder_missing", cell=self._cell, attempt=upload.uid)


def _read_small_pieces(upload: Upload) -> list[OutputPiece] | None:
    """Return the output that is not sent yet; None if it is much, or not to be sent in a batch."""
    if upload.unwanted or upload.ended:
        return None
    pieces, free = list[OutputPiece](), MAX_SMALL_BYTES
    for stream in STREAMS:
        offset = upload.sent[stream]
        try:
            content = _read_piece(upload.folder / stream, offset, free + 1)
        except OSError:
            return None
        if len(content) > free:
            return None
        if content:
            pieces.append(OutputPiece(upload.uid, stream, offset, content))
            free -= len(content)
    return pieces


def _read_piece(path: Path, offset: int, limit: int) -> bytes:
    """Return at most `limit` bytes of a file from `offset` on; none if there is no file."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:
        return b""
