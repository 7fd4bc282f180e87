"""Find signals to a container in the engine's recent events."""

import signal
from contextlib import closing
from typing import Any

# Longest time between a stop signal and the end; an older signal did not cause the end.
REPLAY_SECONDS = 60.0
# The engine records a signal just after sending it; a process may end before that.
LATE_SECONDS = 0.1
ENDING = {"1", "2", "3", "9", "15"}  # HUP, INT, QUIT, KILL and TERM, as events have them


def was_stopped(api: Any, name: str, ended_at: float, stop_signal: str) -> bool:
    """Return whether a terminating signal, or `stop_signal`, was sent to it before its end.

    `stop_signal`: a name like TERM.
    """
    stop_number = getattr(signal, f"SIG{stop_signal.removeprefix('SIG')}", signal.SIGTERM)
    window = {
        "since": f"{ended_at - REPLAY_SECONDS:.9f}",
        "until": f"{ended_at + LATE_SECONDS:.9f}",
    }
    filters = {"type": ["container"], "container": [name], "event": ["kill"]}
    with closing(api.events(**window, filters=filters, decode=True)) as events:
        signals = {event["Actor"]["Attributes"].get("signal") for event in events}
    return bool(signals & (ENDING | {str(int(stop_number))}))
