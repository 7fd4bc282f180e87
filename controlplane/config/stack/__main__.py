"""`python -m controlplane.config.stack COMMAND`, as the Makefile calls it."""

import os
import signal
import sys

from controlplane.config.stack import demo, down, launch, up, wait
from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts import engine, image


def main(arguments: list[str]) -> int:
    """Run one of the commands and return its exit code."""
    commands = {
        "up": up.run,
        "wait": wait.run,
        "down": down.run,
        "demo": demo.run,
        "engine": require_engine,
    }
    if len(arguments) != 1 or arguments[0] not in commands:
        print(f"usage: python -m controlplane.config.stack {'|'.join(commands)}")
        return 2
    if os.environ.get("MAKELEVEL"):
        # If make is killed, no process that it started may remain.
        launch.die_with_parent("TERM")
    # `kill` stops the stack like Ctrl-C. A stack that a script started in the background ignores
    # Ctrl-C by default.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    try:
        return commands[arguments[0]]()
    except StackError as fault:
        print(f"\n{fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def require_engine() -> int:
    """Ensure that an engine runs and has the examples' image, for the tests."""
    image.require_image(engine.require_engine(print), print)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
