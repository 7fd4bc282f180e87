"""The errors of the domain, one per cause."""


class CellrunError(Exception):
    """Base of every error that a door turns into an answer."""


class IllegalTransition(CellrunError):
    """An event for which the transition table has no row; nothing was changed."""


class NotFound(CellrunError):
    """What was asked for does not exist, or is not the asker's to see."""


class Conflict(CellrunError):
    """What was asked for contradicts what is already there."""
