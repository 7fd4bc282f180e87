"""`python -m workers.runners`: list the runners of this installation, with faults."""

import sys

from workers.runners.discovery import BUILT_IN, discover


def main() -> int:
    """Print a line for each runner; return 1 if one cannot be used."""
    for name, what in BUILT_IN.items():
        sys.stdout.write(f"{name:20} {what}\n")
    found = discover()
    for item in found:
        state = f"NOT USED: {item.fault}" if item.fault else item.value
        sys.stdout.write(f"{item.name:20} {state}\n")
    return int(any(item.fault for item in found))


if __name__ == "__main__":
    sys.exit(main())
