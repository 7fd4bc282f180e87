"""Call the API about programs in running attempts."""

from collections.abc import Sequence
from typing import Any

from cellrun.api.paths import path_to
from cellrun.api.transport import ApiTransport
from cellrun.documents import ExecDocument


class ExecCalls(ApiTransport):
    """The calls about exec sessions. Every method may raise Unreachable or ApiError."""

    def start_exec(
        self,
        uid: str,
        command: Sequence[str],
        *,
        tty: bool = False,
        stdin: bool = False,
        rows: int = 0,
        columns: int = 0,
    ) -> ExecDocument:
        """Request a program in a running attempt, and return its session.

        `rows`, `columns`: of the terminal; 0: not known.
        """
        body: dict[str, Any] = {"command": list(command), "tty": tty, "stdin": stdin}
        if rows and columns:
            body |= {"rows": rows, "columns": columns}
        found: ExecDocument = self._call("POST", path_to("attempts", uid, "exec"), body=body)
        return found

    def exec_sessions(self, uid: str) -> list[ExecDocument]:
        """Return the sessions of an attempt, newest first."""
        return list(self._pages(path_to("attempts", uid, "exec")))

    def exec_session(self, session: str) -> ExecDocument:
        """Return a session."""
        found: ExecDocument = self._call("GET", path_to("exec", session))
        return found

    def end_exec(self, session: str) -> None:
        """End a session; its program gets SIGHUP, and SIGKILL soon after."""
        self._call("DELETE", path_to("exec", session))
