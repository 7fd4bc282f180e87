"""Description of errors of hooks, whose own methods may raise; pure."""

from collections.abc import Callable

from controlplane.contract.codec import clean_text

MAX_ERROR_TEXT = 1000
"""Maximum length of a description in characters."""


def describe_error(error: BaseException, form: Callable[[object], str] = repr) -> str:
    """Return a storable text of the error, or its type if `form` raises."""
    try:
        text = form(error)
    except Exception:
        text = type(error).__name__
    return clean_text(text, MAX_ERROR_TEXT)
