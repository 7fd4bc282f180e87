"""`python -m controlplane.config.stack COMMAND`, as the Makefile calls it."""

import os
import shutil
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
        "browser": require_browser,
        "registry": require_registry,
        "dropbear": require_dropbear,
    }
    if len(arguments) != 1 or arguments[0] not in commands:
        print(f"usage: python -m controlplane.config.stack {'|'.join(commands)}")
        return 2
    if os.environ.get("MAKELEVEL"):
        # Make itself may be killed: nothing it started may stay behind.
        launch.die_with_parent("TERM")
    # A plain `kill` stops as cleanly as Ctrl-C; and so does Ctrl-C where a script started the stack
    # in the background, which ignores it by default.
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
    """Make sure that an engine and the examples' image are there, for the tests."""
    image.require_image(engine.require_engine(print), print)
    return 0


def require_browser() -> int:
    """Ensure that a Chromium is installed, for the tests of the admin."""
    if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise StackError("no Chromium found: install it, the browser tests need it")
        print("installing Debian's chromium with apt-get")
        engine.apt_install("chromium")
    return 0


def require_registry() -> int:
    """Make sure that there is an image registry to start, for the tests that pull from one."""
    if not shutil.which("docker-registry"):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise StackError("no docker-registry found: install it, the engine's tests start one")
        print("installing Debian's docker-registry with apt-get")
        engine.apt_install("docker-registry")
    return 0


def require_dropbear() -> int:
    """Make sure that there is an SSH server for a container, for the tests that log in to one."""
    if not shutil.which("dropbear"):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise StackError("no dropbear found: install it, the tests of gangs take it along")
        print("installing Debian's dropbear-bin with apt-get")
        engine.apt_install("dropbear-bin")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
