"""Call the API about sessions of exec."""

from collections.abc import Mapping, Sequence
from typing import Any

from cellrun.api.paths import path_to
from cellrun.api.transport import ApiTransport


class ExecCalls(ApiTransport):
    """The calls about sessions. Every method may raise Unreachable or ApiError."""

    def start_exec(
        self,
        uid: str,
        command: Sequence[str],
        *,
        tty: bool = False,
        stdin: bool = False,
        rows: int | None = None,
        columns: int | None = None,
    ) -> Mapping[str, Any]:
        """Request a program in a running attempt, and return the session."""
        body: dict[str, Any] = {"command": list(command), "tty": tty, "stdin": stdin}
        if rows is not None and columns is not None:
            body |= {"rows": rows, "columns": columns}
        found: Mapping[str, Any] = self._call("POST", path_to("attempts", uid, "exec"), body=body)
        return found

    def exec_session(self, session: str) -> Mapping[str, Any]:
        """Return a session."""
        found: Mapping[str, Any] = self._call("GET", path_to("exec", session))
        return found

    def end_exec(self, session: str) -> None:
        """End a session; its program gets SIGHUP, and SIGKILL soon after."""
        self._call("DELETE", path_to("exec", session))
