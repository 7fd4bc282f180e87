"""Call the API, patiently for half a minute, and report its errors."""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from cellrun import ApiError, ClientError, Session, Unreachable, connect
from slurm_commands.programs.entry import Failed

# A web process restarts within seconds, on a busy machine within ten.
PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, *(3.0,) * 9)
_TRANSIENT = frozenset({502, 503, 504})

T = TypeVar("T")


def with_session(use: Callable[[Session], T]) -> T:
    """Return the result of `use`; repeat it for half a minute while the server is unavailable.

    What it does must be repeatable: reads, cancellation, or a submission with a guid. Raise Failed.
    """
    try:
        with connect() as session:
            for pause in PAUSES_SECONDS:
                try:
                    return use(session)
                except (Unreachable, ApiError) as fault:
                    if isinstance(fault, ApiError) and fault.status not in _TRANSIENT:
                        raise
                    if pause == PAUSES_SECONDS[0]:
                        print(f"{fault}; repeating the request", file=sys.stderr)
                time.sleep(pause)
            return use(session)
    except ClientError as fault:
        raise Failed(fault.lines()) from None
