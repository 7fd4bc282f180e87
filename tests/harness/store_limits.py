"""Limits of the store for tests that store files without a project."""


def reserve_nothing(_: int) -> None:
    """Accept a file of any size: a `Reserve` without a limit."""
