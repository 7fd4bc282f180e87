"""The cell's connections of exec sessions to a web process that fails."""

import socket
import struct
import threading
from contextlib import suppress

import pytest

from controlplane.contract.exec_link import ConnectionLost
from workers.exec.connection import CellConnector

RESETS = 200


def test_each_reset_of_a_handshake_is_a_lost_connection() -> None:
    """Resets at different moments raise different errors of the library."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset() -> None:
            with suppress(OSError):
                while True:
                    accepted, _ = server.accept()
                    linger = struct.pack("ii", 1, 0)
                    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    accepted.close()

        thread = threading.Thread(target=reset)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        connector = CellConnector(control_url=url, cell="cell-1", key=b"k" * 32)
        for _ in range(RESETS):
            with pytest.raises(ConnectionLost):
                connector.connect("s", "n", 0)
        server.shutdown(socket.SHUT_RDWR)
    thread.join()
