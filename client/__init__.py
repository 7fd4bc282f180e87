"""The `cellrun` command and the Python client, which use the HTTP API only."""

from client.errors import ApiError, ClientError, StillOpen, Unreachable
from client.session import Session, connect

__all__ = ["ApiError", "ClientError", "Session", "StillOpen", "Unreachable", "connect"]
