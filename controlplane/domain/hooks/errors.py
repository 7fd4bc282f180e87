"""Description of errors of hooks, whose own methods may raise, too; pure."""

from collections.abc import Callable

from controlplane.contract.codec import clean_text

MAX_ERROR_TEXT = 1000
"""Characters of the description of an error of a hook."""


def describe_error(error: BaseException, form: Callable[[object], str] = repr) -> str:
    """Return a text of the error that can be stored, though its own methods may raise."""
    try:
        text = form(error)
    except Exception:
        text = type(error).__name__
    return clean_text(text, MAX_ERROR_TEXT)
