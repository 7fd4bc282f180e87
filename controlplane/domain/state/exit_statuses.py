"""Explain exit statuses that are not of the program itself, but of a signal that ended it."""

import re
import signal

# Shells and container engines report the end by a signal as 128 and the number of the signal.
SIGNAL_BASE = 128
_TEXT = re.compile(r"\bexit status (\d+)\b")


def explain_exit_status(status: int | None) -> str:
    """Return the signal that an exit status stands for: `SIGSEGV, segmentation fault`; or ""."""
    if status is None or status <= SIGNAL_BASE:
        return ""
    try:
        number = signal.Signals(status - SIGNAL_BASE)
    except ValueError:
        return ""
    text = signal.strsignal(number) or ""
    return f"{number.name}, {text.lower()}" if text else number.name


def with_signal(text: str) -> str:
    """Return the text of a failure with the signal of the exit status that it names, if any."""
    found = _TEXT.search(text)
    explained = explain_exit_status(int(found[1])) if found else ""
    return f"{text} ({explained})" if explained else text
