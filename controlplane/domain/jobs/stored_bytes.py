"""The limit of the bytes that the store has for a project; pure."""

from dataclasses import dataclass

_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))

END_OF_STREAM = b": no more output is stored]\n"
"""The end of the line after which no more output of a stream is stored."""


@dataclass(frozen=True, slots=True)
class LimitedStorage:
    """A project with a limit, and the bytes that the store has for it."""

    project: str
    limit: int
    used: int

    @property
    def free(self) -> int:
        """Return how many bytes may be added; negative above the limit."""
        return self.limit - self.used

    @property
    def is_used_up(self) -> bool:
        """Return whether nothing may be added."""
        return self.free <= 0

    def refuse(self, size: int) -> str:
        """Return why `size` more bytes cannot be stored, and how to free space."""
        more = f", and {format_bytes(size)} are to be added" if size else ""
        return (
            f"project {self.project} stores {format_bytes(self.used)}{more}, but its limit"
            f" stored_bytes is {format_bytes(self.limit)}: delete jobs (cellrun delete) or evict"
            " cache entries (cellrun cache evict); an operator can raise the limit (cellrun quota"
            f" project {self.project} --set stored_bytes=…)"
        )

    def end_of_output(self) -> bytes:
        """Return the line after which no more output of a stream is stored."""
        return (
            f"\n[cellrun: project {self.project} stores {format_bytes(self.used)}, and its limit"
            f" stored_bytes is {format_bytes(self.limit)}"
        ).encode() + END_OF_STREAM


def format_bytes(size: int) -> str:
    """Format a size in the largest unit that is not larger: "512 bytes", "1.5 MiB"."""
    for unit, scale in _UNITS:
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
