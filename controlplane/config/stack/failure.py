"""Define the error that reports to the user why the stack failed."""


class StackError(Exception):
    """The stack cannot go on; the message says why and what to do about it."""
