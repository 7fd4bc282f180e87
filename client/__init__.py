"""The `cellrun` command and the Python client: all they know of the system is its HTTP API."""

from client.errors import ApiError, ClientError, StillOpen, Unreachable
from client.session import Session, connect

__all__ = ["ApiError", "ClientError", "Session", "StillOpen", "Unreachable", "connect"]
