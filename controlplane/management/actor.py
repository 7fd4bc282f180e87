"""The name under which a management command appears in the audit log."""

import getpass


def actor_of_process() -> str:
    """Return `manage.py` with the user of the operating system, if that user has a name."""
    try:
        return f"manage.py ({getpass.getuser()})"
    except (KeyError, OSError):  # a user id without an entry, as in containers
        return "manage.py"
