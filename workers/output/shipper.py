"""Upload the output of attempts to the control plane exactly once, across restarts of both sides.

Every piece has an offset, and the server answers with the size of its copy, which is the next
offset. So the cell stores no progress, except an empty file `shipped` in the folder of an attempt
whose output has arrived completely.
"""

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path

import structlog

from workers import clock
from workers.output.client import (
    HTTP_SECONDS,
    BatchRefused,
    NoResponse,
    UploadClient,
    UploadDeferred,
)
from workers.output.pieces import MAX_PAUSE_SECONDS, SMALL_BYTES, Upload, UploadBatch

log = structlog.get_logger(__name__)

ROUND_SECONDS = 0.5  # between uploads of new output: a follower gets a line within a second
CHUNK_BYTES = 1024 * 1024
KEPT_SECONDS = 24 * 3600.0  # how long folders of ended attempts stay on the machine
SWEEP_SECONDS = 600.0
SHIPPED = "shipped"


class LogShipper:
    """Uploads new output from one thread.

    `finish` leaves a small rest to this thread, which sends those of many attempts in one request,
    and uploads a large one from the caller's thread.
    """

    def __init__(
        self,
        *,
        control_url: str,
        cell: str,
        key: bytes,
        folder: Path,
        now: Callable[[], float] = clock.wall_seconds,
        round_seconds: float = ROUND_SECONDS,
    ) -> None:
        """Create an uploader; `folder` has one folder per attempt.

        With an empty `control_url` nothing is uploaded.
        """
        self._is_on = bool(control_url)
        self._client = UploadClient(control_url=control_url, cell=cell, key=key, now=now)
        self._cell = cell
        self._folder = folder
        self._now = now
        self._round_seconds = round_seconds
        self._lock = threading.Lock()
        self._uploads: dict[str, Upload] = {}
        self._queued: dict[str, Upload] = {}  # small rests for the next request
        self._is_away = False  # the control plane did not answer in the last round
        self._closed = threading.Event()
        self._wake = threading.Event()
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
            self._uploads[uid] = Upload(uid, folder)
            # An adopted attempt may write more after an earlier process uploaded all.
            (folder / SHIPPED).unlink(missing_ok=True)

    def finish(self, uid: str, seconds: float) -> None:
        """Upload the rest of a complete output, for `seconds` at most.

        What is refused, or cannot be sent now, is left to later rounds at once.
        """
        with self._lock:
            upload = self._uploads.get(uid)
        if upload is None:
            return
        upload.complete = True
        try:
            if self._is_on and not upload.largest_rest:
                self._forget([upload])
            elif self._leave_to_thread(upload):
                if not upload.settled.wait(seconds) and seconds:
                    raise UploadDeferred("not sent yet")
            else:
                end = time.monotonic() + seconds
                while self._is_on and (rest := end - time.monotonic()) > 0:
                    if self._send_some(upload, rest):
                        break
        except UploadDeferred as error:
            log.info("last_output_delayed", cell=self._cell, attempt=uid, error=str(error))

    def close(self) -> None:
        """Stop uploading; the next process of this cell uploads the rest."""
        self._closed.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(HTTP_SECONDS[0])
        self._client.close()

    def _serve(self) -> None:
        """Run rounds, and send small rests between them as attempts end.

        The pause between rounds grows while requests are refused; that of an attempt whose output
        is refused is its own.
        """
        pause = self._round_seconds
        swept_at = round_at = time.monotonic()
        while not self._closed.is_set():
            self._wake.wait(max(round_at + pause - time.monotonic(), 0.0))
            self._wake.clear()
            if time.monotonic() < round_at + pause:
                self._attempt(self._send_ended)
                continue
            round_at = time.monotonic()
            if round_at - swept_at > SWEEP_SECONDS:
                swept_at = round_at
                self._attempt(self.sweep)
            is_done = self._attempt(self.send_round)
            pause = self._round_seconds if is_done else min(pause * 2, MAX_PAUSE_SECONDS)
        self._release(self._take_queued())

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Run a step of the thread; return whether it did all."""
        try:
            step()
            return True
        except UploadDeferred as error:
            log.warning("output_delayed", cell=self._cell, error=str(error))
        except Exception:
            log.exception("output_round_failed", cell=self._cell)
        return False

    def send_round(self) -> None:
        """Upload one chunk of new output for every attempt. Raise UploadDeferred."""
        with self._lock:
            uploads = [upload for upload in self._uploads.values() if upload.is_due]
        if not self._is_on:
            self._forget(upload for upload in uploads if upload.complete)
            return
        # A slow store cannot serve all at once: what waits longest comes first. What was refused
        # comes last, since it may end the request of all.
        uploads.sort(key=attrgetter("pause", "stored_at"))
        large = [upload for upload in uploads if not self._queue_small(upload)]
        refused = self._send_queued()
        for upload in large:
            if self._closed.is_set():
                return
            self._send_by_itself(upload)
            # Attempts with little output do not wait for the end of the round.
            refused = self._send_queued() or refused
        self._is_away = False
        if refused is not None:
            raise refused

    def _queue_small(self, upload: Upload) -> bool:
        """Queue an output with a small rest; return False if it has to be sent by itself."""
        try:
            is_small = upload.largest_rest <= SMALL_BYTES
        except UploadDeferred as error:
            self._defer(upload, error)
            return True
        if is_small:
            self._queue(upload)
        return is_small

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

    def _leave_to_thread(self, upload: Upload) -> bool:
        """Queue a complete output for the thread, if its rest is small; return whether it is.

        Raise UploadDeferred.
        """
        if not (self._is_on and self._thread.is_alive()) or upload.largest_rest > SMALL_BYTES:
            return False
        if self._is_away:
            raise UploadDeferred("the control plane does not answer")
        self._queue(upload)
        self._wake.set()
        return True

    def _queue(self, upload: Upload) -> None:
        with self._lock:
            self._queued[upload.uid] = upload

    def _take_queued(self) -> list[Upload]:
        with self._lock:
            taken = list(self._queued.values())
            self._queued.clear()
            return taken

    def _send_ended(self) -> None:
        """Upload the small rests of attempts that have ended. Raise UploadDeferred."""
        if self._is_away:
            self._release(self._take_queued())
        elif (refused := self._send_queued()) is not None:
            raise refused

    def _send_queued(self) -> UploadDeferred | None:
        """Upload the small rests of the outputs that are queued now, many in one request.

        Return the last refusal of a whole request. Raise NoResponse.
        """
        pending, refused = deque(self._take_queued()), None
        try:
            while pending and not self._closed.is_set():
                refused = self._send_batch(pending) or refused
        except NoResponse:
            self._is_away = True
            self._release(self._take_queued())
            raise
        finally:
            self._release(pending)
        return refused

    def _send_batch(self, pending: deque[Upload]) -> UploadDeferred | None:
        """Upload the first of the pending outputs; return the refusal of the whole request.

        Raise NoResponse.
        """
        batch, alone = UploadBatch(), list[Upload]()
        try:
            with batch:
                self._fill(batch, pending)
                try:
                    results = self._client.post(batch.pieces) if batch.pieces else []
                except BatchRefused:
                    alone += batch.uploads
                else:
                    outcome = batch.note(results)
                    for upload, error in outcome.refused:
                        self._defer(upload, error)
                    self._forget(upload for upload in batch.ends if not upload.largest_rest)
                    if outcome.is_store_away and not outcome.has_stored:
                        raise UploadDeferred("the store of the control plane does not answer")
                    if outcome.has_stored and not outcome.is_store_away:
                        pending.extend(outcome.untried.values())
            # One of them may be the reason, or the control plane is of an earlier version.
            for upload in alone:
                self._send_by_itself(upload)
        except NoResponse:
            raise
        except UploadDeferred as error:
            return error
        finally:
            left = {upload.uid for upload in pending}
            self._release(upload for upload in batch.ends if upload.uid not in left)
        self._is_away = False
        return None

    def _fill(self, batch: UploadBatch, pending: deque[Upload]) -> None:
        """Move pending outputs to the batch, as many as it has room for."""
        while batch.has_room and pending:
            upload = pending.popleft()
            try:
                batch.add(upload)
            except UploadDeferred as error:
                self._defer(upload, error)

    def _send_by_itself(self, upload: Upload) -> None:
        """Upload a chunk of each stream, unless another thread does so. Raise NoResponse."""
        try:
            self._send_some(upload, sum(HTTP_SECONDS), may_wait=False)
        except NoResponse:
            self._is_away = True
            raise
        except UploadDeferred as error:
            self._defer(upload, error)

    def _defer(self, upload: Upload, error: UploadDeferred) -> None:
        upload.defer(self._round_seconds)
        log.warning("output_delayed", cell=self._cell, attempt=upload.uid, error=str(error))

    def _send_some(self, upload: Upload, seconds: float, *, may_wait: bool = True) -> bool:
        """Upload a chunk of each stream in `seconds`; return whether all output was uploaded.

        Raise UploadDeferred.
        """
        if not upload.lock.acquire(timeout=seconds if may_wait else 0.0):
            if not may_wait:
                return False
            raise UploadDeferred("another thread is sending it")
        try:
            is_complete = upload.complete  # read before the files, which are then complete
            for stream in upload.open_streams:
                piece = None if upload.unwanted else upload.read(stream, CHUNK_BYTES)
                if piece is not None:
                    upload.note(piece, self._client.put(piece, seconds))
            has_more = upload.largest_rest > 0
            if is_complete and not has_more:
                self._forget([upload])
            return not has_more
        finally:
            upload.lock.release()

    @staticmethod
    def _release(uploads: Iterable[Upload]) -> None:
        """Let the ends of attempts go on; later rounds upload what is left of their output."""
        for upload in uploads:
            if upload.complete:
                upload.settled.set()

    def _forget(self, uploads: Iterable[Upload]) -> None:
        """Forget outputs that have arrived."""
        for upload in uploads:
            with self._lock:
                if self._uploads.get(upload.uid) is not upload:
                    continue
                del self._uploads[upload.uid]
                try:
                    if upload.folder.exists():  # without output there may be none
                        (upload.folder / SHIPPED).touch()
                except OSError:
                    log.info("output_folder_missing", cell=self._cell, attempt=upload.uid)
            upload.settled.set()
