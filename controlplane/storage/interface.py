"""The interface of the store: what its two implementations, a folder and an object store, provide.

Both use the same keys:

inputs/<2 hex>/<sha256>
logs/<2 hex>/<attempt uid>/<stream>
artifacts/<shard>/<domain>/<project>/<job>/<task>/<attempt uid>/<name>
drafts/<2 hex>/<attempt uid>/<key>          an incomplete artifact; <key>.done: it is complete
discarded/<random>                          what is being deleted

The key of a draft contains name, size and SHA-256 of the file, so that two versions never mix.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol
from uuid import UUID

from controlplane.contract.messages.reports import MAX_OUTPUTS

STREAMS = ("stdout", "stderr")
MAX_STREAM_BYTES = 64 * 1024 * 1024  # of one stream of an attempt
# All outputs that a report may name, the checkpoint and the manifest.
MAX_FILES = MAX_OUTPUTS + 2


class StoreUnavailable(OSError):
    """The store does not answer, or with an error: the request may be repeated."""


class StoreFull(Exception):
    """The store would have less free space than it keeps; it accepts data again once it has."""


class WrongOffset(Exception):
    """The stream has another size: `size` is the offset at which to continue."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the stream has {size} bytes: continue at this offset")
        self.size = size


class StreamFull(Exception):
    """The stream has ended: at its maximum size, or for the reason `detail`."""

    def __init__(self, size: int, detail: str = "") -> None:
        super().__init__(detail or f"the stream is full: it stores at most {size} bytes")
        self.size = size


class ArtifactsTooLarge(Exception):
    """The artifacts of the attempt would exceed a limit."""


Most = Callable[[], int]
"""Returns the limit in bytes for all artifacts of an attempt; called before a file is accepted."""

Reserve = Callable[[int], None]
"""Called with the bytes that all artifacts of the attempt will have, before a file is accepted.

It may raise ArtifactsTooLarge.
"""


class ContentMismatch(Exception):
    """The content differs from the announced file; what was stored of it is discarded."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A part of a stream, and the offset at which the next one begins."""

    content: bytes
    next_offset: int


@dataclass(frozen=True, slots=True)
class AnnouncedFile:
    """A file to be uploaded below `prefix`, with name, size in bytes and SHA-256 in hex."""

    uid: UUID
    prefix: str
    name: str
    size: int
    sha256: str

    @property
    def target(self) -> str:
        """Return the key of the complete file."""
        return f"artifacts/{self.prefix}/{self.name}"

    @property
    def draft(self) -> str:
        """Return the key of the draft."""
        return f"{drafts_of(self.uid)}/{self.name_key}-{self.size}-{self.sha256}"

    @property
    def name_key(self) -> str:
        """Return the common prefix of the names of the drafts of all versions of the file."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class UploadProgress:
    """How the upload of a file continues.

    `size`: the stored bytes. `url`: where the whole file is sent by PUT with `headers`; None: it is
    sent to web in pieces.
    """

    size: int
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OrphanEntry:
    """What the attempt `uid` has at `path`, or, without a uid, an incomplete input."""

    path: Path
    uid: UUID | None = None


@dataclass(frozen=True, slots=True)
class OrphanPage:
    """Some entries of a place. `then`: the place where another walk continues.

    That is the same place, or the next one once the place was read completely.
    """

    then: str
    lying: Sequence[OrphanEntry]


@dataclass(frozen=True, slots=True)
class TrashRemainder:
    """Whether discarded content remains. `fault`: why some cannot be deleted."""

    anything: bool
    fault: OSError | None = None


class ArtifactStore(Protocol):
    """The files of the control plane. All functions may raise OSError, such as StoreUnavailable.

    `append_log`, `announce` and `put_piece` raise StoreFull if too little space would remain free.
    """

    def check_space(self) -> None:
        """Raise StoreFull if less space is free than the store keeps."""

    def put_input(self, content: bytes) -> str:
        """Store `content` durably, once; return its SHA-256 in hex."""

    def read_input(self, digest: str) -> bytes | None:
        """Return the content with this SHA-256, or None if it is not stored."""

    def link_to_input(self, digest: str) -> str | None:
        """Return a URL from which the input can be read; None: web must send it."""

    def append_log(self, uid: UUID, stream: str, *, offset: int, content: bytes) -> int:
        """Append `content` if the stream has `offset` bytes; return its new size.

        Raise WrongOffset, or StreamFull after storing the part that fits.
        """

    def read_log(self, uid: UUID, stream: str, *, offset: int, limit: int) -> LogPiece:
        """Return at most `limit` bytes of a stream from `offset` on; none at or after its end."""

    def find_tail(self, uid: UUID, stream: str, *, lines: int, limit: int) -> int:
        """Return the offset of the last `lines` lines, at most `limit` bytes before the end."""

    def remove_logs(self, uid: UUID) -> None:
        """Remove the output of an attempt. Idempotent."""

    def announce(self, file: AnnouncedFile, *, most: Most, reserve: Reserve) -> UploadProgress:
        """Reserve space for a file; return how its upload continues. Idempotent.

        Raise ArtifactsTooLarge.
        """

    def put_piece(
        self,
        file: AnnouncedFile,
        *,
        offset: int,
        content: bytes,
        most: Most,
        reserve: Reserve,
    ) -> int:
        """Store a piece if it continues the stored part; return the stored bytes of the file.

        The last piece publishes the file durably; it is empty after an upload by link. Idempotent.
        Raise ArtifactsTooLarge, ContentMismatch.
        """

    def put_manifest(self, prefix: str, content: bytes) -> None:
        """Store the manifest of an attempt. A power cut may lose it."""

    def check_present(self) -> None:
        """Raise StoreUnavailable if the store is not there, rather than empty."""

    def open_artifact(self, prefix: str, name: str) -> BinaryIO | None:
        """Open a complete file, or return None if it is not stored."""

    def link_to_artifact(self, prefix: str, name: str) -> str | None:
        """Return a URL from which a stored file can be read; None: web must send it."""

    def discard_attempts(self, prefixes: Mapping[UUID, str]) -> dict[UUID, OSError]:
        """Discard artifacts and output of attempts in little time, whatever their size.

        Return the errors by uid. Idempotent.
        """

    def delete_discarded(self, is_over: Callable[[], bool]) -> TrashRemainder:
        """Delete discarded content until `is_over` returns true; return what remains."""

    def walk_store(self, begin: str) -> Iterator[OrphanPage]:
        """Yield the content from the place `begin` on, in pages, at least one per place."""

    def is_older(self, entry: OrphanEntry, instant: float) -> bool:
        """Return whether nothing of the entry was written since `instant` (s since 1970)."""

    def put_away(self, entry: OrphanEntry) -> None:
        """Remove the entry. Idempotent."""


def drafts_of(uid: UUID) -> str:
    """Return the prefix of the drafts of an attempt."""
    return f"drafts/{uid.hex[-2:]}/{uid}"


def logs_of(uid: UUID) -> str:
    """Return the prefix of the output of an attempt."""
    return f"logs/{uid.hex[-2:]}/{uid}"


def log_of(uid: UUID, stream: str) -> str:
    """Return the key, or prefix, of a stream."""
    if stream not in STREAMS:
        raise ValueError(f"there is no stream {stream!r}; streams are {', '.join(STREAMS)}")
    return f"{logs_of(uid)}/{stream}"


def input_of(digest: str) -> str:
    """Return the key of an input."""
    return f"inputs/{digest[:2]}/{digest}"


def find_lines(content: bytes, lines: int) -> int | None:
    """Return where the last `lines` lines of `content` begin; None if it has no more than those."""
    end = len(content) - 1 if content.endswith(b"\n") else len(content)
    for _ in range(lines):
        end = content.rfind(b"\n", 0, end)
        if end < 0:
            return None
    return end + 1


def without_incomplete_character(content: bytes) -> bytes:
    """Return `content` without an incomplete UTF-8 character at its end, unless it is short."""
    for back in range(1, min(len(content) - 1, 3) + 1):
        lead = content[-back]
        if lead & 0b1100_0000 == 0b1100_0000:
            length = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2
            return content[:-back] if length > back else content
        if lead & 0b1000_0000 == 0:
            break
    return content
