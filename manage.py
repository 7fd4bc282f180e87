#!/usr/bin/env python3
"""Django's command line for the control plane: migrations, bootstrap, checks on a live database."""

import os
import sys


def main() -> None:
    """Run one management command with the control plane's settings."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
