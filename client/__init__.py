"""The `cellrun` command and the Python client, which use the HTTP API only."""

from client.api.session import Session, connect
from client.errors import ApiError, ClientError, StillOpen, Unreachable

__all__ = ["ApiError", "ClientError", "Session", "StillOpen", "Unreachable", "connect"]
