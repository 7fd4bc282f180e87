"""Return what a command left: its exit code, its result, and its output when it is needed."""

from dataclasses import dataclass, field

from cellrun.addresses import find_one_task
from cellrun.api.session import Session
from cellrun.settings import ClientSettings


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The outcome of a command that succeeded. `text`: with `Command(..., result=True)`."""

    address: str
    exit_code: int
    text: str | None
    _settings: ClientSettings = field(repr=False, compare=False)

    def stdout(self) -> str:
        """Request the output from the server, where it exists as long as the job."""
        return self._read("stdout")

    def stderr(self) -> str:
        """Request the output for errors from the server."""
        return self._read("stderr")

    def _read(self, stream: str) -> str:
        pieces = []
        with Session(self._settings) as session:
            uid = find_one_task(session, self.address)["attempt_uid"]
            cursor = "0"
            while uid is not None:
                piece = session.log(uid, stream, cursor)
                if piece.cursor == cursor:
                    break
                pieces.append(piece.content)
                cursor = piece.cursor
        return b"".join(pieces).decode("utf-8", "replace")
