"""The connection of an ExecLink over a WebSocket, for the cell and for the command."""

from collections.abc import Callable
from contextlib import ExitStack, suppress

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection

from controlplane.contract.exec_link import FINAL_CODES, ConnectionLost, LinkOver

OPEN_SECONDS = 10.0
CLOSE_SECONDS = 1.0
REPEATABLE = (408, 429)  # statuses of the handshake below 500 that are not final


class SocketConnection:
    """See LinkConnection in controlplane.contract.exec_link."""

    def __init__(self, stack: ExitStack, socket: ClientConnection) -> None:
        """`stack`: closes the socket."""
        self._stack = stack
        self._socket = socket

    def send(self, message: bytes) -> None:
        """Send a message."""
        try:
            self._socket.send(message)
        except ConnectionClosed as closed:
            raise _meaning_of(closed) from closed
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def receive(self, seconds: float) -> bytes | None:
        """Return the next message."""
        try:
            message = self._socket.recv(seconds)
        except TimeoutError:
            return None
        except ConnectionClosed as closed:
            raise _meaning_of(closed) from closed
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        return message if isinstance(message, bytes) else message.encode()

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            self._stack.close()


def open_connection(
    connect: Callable[[], ClientConnection], explain: Callable[[int, bytes], str]
) -> SocketConnection:
    """Return a new connection. Raise ConnectionLost, LinkOver.

    `explain`: returns the text for a final refusal, from its status and body.
    """
    stack = ExitStack()
    try:
        # The library warns of a connection that is no context manager.
        return SocketConnection(stack, stack.enter_context(connect()))
    except InvalidStatus as refused:
        status = refused.response.status_code
        if 400 <= status < 500 and status not in REPEATABLE:
            raise LinkOver(explain(status, bytes(refused.response.body or b""))) from refused
        raise ConnectionLost(f"HTTP status {status}") from refused
    except (WebSocketException, OSError, EOFError, ValueError) as error:
        raise ConnectionLost(str(error) or type(error).__name__) from error


def _meaning_of(closed: ConnectionClosed) -> ConnectionLost | LinkOver:
    """Return what the close code means for the session."""
    frame = closed.rcvd
    if frame is not None and frame.code in FINAL_CODES:
        return LinkOver(frame.reason or "the session has ended", int(frame.code))
    return ConnectionLost(str(closed))
