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


def require_browser() -> int:
    """Ensure that a Chromium is installed, for the tests of the admin."""
    if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise StackError("Chromium is not installed: install it for the tests of the admin")
        print("installing Debian's chromium with apt-get")
        engine.apt_install("chromium")
    return 0


def require_registry() -> int:
    """Ensure that an image registry is installed, for the tests that pull from one."""
    if not shutil.which("docker-registry"):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise StackError("docker-registry is not installed: install it for the tests of pulls")
        print("installing Debian's docker-registry with apt-get")
        engine.apt_install("docker-registry")
    return 0


def require_dropbear() -> int:
    """Ensure that an SSH server is installed, for the tests that log in to a container."""
    if not shutil.which("dropbear"):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise StackError("dropbear is not installed: install it for the tests of gangs")
        print("installing Debian's dropbear-bin with apt-get")
        engine.apt_install("dropbear-bin")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
