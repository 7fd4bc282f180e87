"""The errors of the domain, one per cause."""


class CellrunError(Exception):
    """Base of every error that an endpoint turns into a response."""


class IllegalTransition(CellrunError):
    """An event for which the transition table has no row; nothing was changed."""


class NotFound(CellrunError):
    """The object does not exist, or is not visible to the caller."""


class Conflict(CellrunError):
    """The request contradicts existing state."""
