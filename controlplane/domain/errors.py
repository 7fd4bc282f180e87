"""The errors of the domain, one per cause."""


class CellrunError(Exception):
    """Base of every error that a door turns into an answer."""


class IllegalTransition(CellrunError):
    """An event for which the transition table has no row; nothing was changed."""


class NotFound(CellrunError):
    """What was asked for does not exist, or is not the asker's to see."""


class Conflict(CellrunError):
    """What was asked for contradicts what is already there."""


class Unsatisfiable(CellrunError):
    """A request that can never fit; the text names the shortfall."""

    def __init__(self, text: str, field: str = "resources") -> None:
        super().__init__(text)
        self.field = field


class LimitExceeded(CellrunError):
    """A cap of the installation; the text names the field and the limit."""

    def __init__(self, text: str, field: str) -> None:
        super().__init__(text)
        self.field = field
