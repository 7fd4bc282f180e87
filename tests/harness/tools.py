"""`python -m tests.harness.tools NAME…`: make sure that the tools of some tests are installed."""

import os
import shutil
import sys

from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts.engine import apt_install

TOOLS = {
    "browser": (
        ("chromium", "chromium-browser", "google-chrome"),
        "chromium",
        "no Chromium found: install it, the browser tests need it",
    ),
    "registry": (
        ("docker-registry",),
        "docker-registry",
        "no docker-registry found: install it, the engine's tests start one",
    ),
    "dropbear": (
        ("dropbear",),
        "dropbear-bin",
        "no dropbear found: install it, the tests of gangs take it along",
    ),
    "promtool": (
        ("promtool",),
        "prometheus",
        "no promtool found: install Prometheus, the tests check its rules with it",
    ),
}
"""By name: the programs of which one suffices, Debian's package, and the message without both."""


def main(names: list[str]) -> int:
    """Install each tool that is missing and return the exit code."""
    try:
        for name in names:
            programs, package, message = TOOLS[name]
            if any(map(shutil.which, programs)):
                continue
            if os.geteuid() != 0 or not shutil.which("apt-get"):
                raise StackError(message)
            print(f"installing Debian's {package} with apt-get")
            apt_install(package)
    except StackError as fault:
        print(f"\n{fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
