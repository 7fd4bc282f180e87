"""`python -m workers`, or `cellrun-cell`: run one cell, or join a host as a cell.

Without a command, the cell runs, configured by the environment (see `workers.config`).
"""

import argparse
import os
import sys

from workers.config import CellConfig, MalformedSettings
from workers.drivers.registry import make_driver
from workers.service.serving import serve


def main() -> int:
    """Run the cell until it is stopped, or the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="cellrun-cell")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("run", help="run the cell of the environment (default)")
    if len(sys.argv) > 1:
        # Only for this command: a cell does not wait for it at its start.
        from workers.join.command import add_join_command, join

        add_join_command(commands)
        options = parser.parse_args()
        if options.command == "join":
            return join(options)
    return _run()


def _run() -> int:
    try:
        config = CellConfig.from_env(os.environ)
    except MalformedSettings as error:
        sys.stderr.write(f"settings refused: {error}\n")
        return 2
    return serve([config], make_driver, name=f"cell@{config.name}")


if __name__ == "__main__":
    sys.exit(main())
