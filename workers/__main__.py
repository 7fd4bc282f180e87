"""`python -m workers`: one cell, configured by the environment (see `workers.config`)."""

import os
import sys

from workers.config import CellConfig, MalformedSettings
from workers.drivers.registry import make_driver
from workers.service.serving import serve


def main() -> int:
    """Run the cell until it is stopped; return the exit code."""
    try:
        config = CellConfig.from_env(os.environ)
    except MalformedSettings as error:
        sys.stderr.write(f"settings refused: {error}\n")
        return 2
    return serve([config], make_driver, name=f"cell@{config.name}")


if __name__ == "__main__":
    sys.exit(main())
