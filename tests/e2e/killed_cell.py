"""A cell that is killed -9 at one moment of one attempt: `python -m tests.e2e.killed_cell`.

KILL_AT names a function of the pipeline and whether it begins (`call`) or is over (`return`), like
`create_container:call`. The product knows nothing of it: the interpreter reports each call.
"""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from workers.__main__ import main

STEPS = f"{os.sep}workers{os.sep}attempt{os.sep}"


def kill_at(name: str, moment: str) -> None:
    """End this process by SIGKILL when that function begins, or is over, in any thread made now."""

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == moment and code.co_name == name and STEPS in code.co_filename:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(trace)


if __name__ == "__main__":
    kill_at(*os.environ.pop("KILL_AT").split(":"))
    sys.exit(main())
