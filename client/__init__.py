"""The `cellrun` command and the Python client: all they know of the system is its HTTP API."""

from client.errors import ClientError, Refused, StillOpen, Unreachable
from client.session import Session, connect

__all__ = ["ClientError", "Refused", "Session", "StillOpen", "Unreachable", "connect"]
