"""What went wrong with the stack, in a sentence for the person who started it."""


class StackError(Exception):
    """The stack cannot go on; the message says why and what to do about it."""
