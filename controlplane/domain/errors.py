"""The errors of the domain, one per cause."""


class CellrunError(Exception):
    """Base of the errors that endpoints convert to responses."""


class IllegalTransition(CellrunError):
    """An event without a row in the transition table."""


class NotFound(CellrunError):
    """The object does not exist, or is not visible to the caller."""


class NotPermitted(CellrunError):
    """The role of the caller does not permit the request."""


class Conflict(CellrunError):
    """The request contradicts existing state."""
