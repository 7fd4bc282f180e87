"""Define the error that reports to the user why the stack failed."""


class StackError(Exception):
    """The stack cannot continue; the message names the cause and the remedy."""
