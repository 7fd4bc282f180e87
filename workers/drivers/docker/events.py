"""What the engine remembers of what people did to a container, for a while."""

import signal
from contextlib import closing
from typing import Any

# The longest time between a stop signal and its end; an older signal had another purpose.
REPLAY_SECONDS = 60.0
# An engine notes a signal just after it was sent, which a quick process may not live to see.
LATE_SECONDS = 0.1
ENDING = {"1", "2", "3", "9", "15"}  # HUP, INT, QUIT, KILL and TERM, as they are noted


def was_stopped(api: Any, name: str, ended_at: float, stop_signal: str) -> bool:
    """Whether a signal that ends programs, or this container, was sent to it before its end.

    `stop_signal`: by its name, like TERM.
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
