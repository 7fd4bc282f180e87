"""Check a connection that failed no statement by its socket instead of a statement.

Django checks a persistent connection before its first statement of each task and batch. A server
that ends a connection closes it, or first sends the reason: both make the socket readable. A check
by a statement would find no other failure, except a network that loses everything, in which the
next statement fails as well.
"""

import select

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection to PostgreSQL."""

    def is_usable(self) -> bool:
        """Return whether the connection works."""
        if self.connection is None:
            return False
        if self.errors_occurred or _is_readable(self.connection.fileno()):
            return bool(super().is_usable())
        return True


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
