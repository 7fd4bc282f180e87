"""Exit statuses above 128 stand for the signal that ended the program."""

import pytest

from controlplane.domain.state.exit_statuses import explain_exit_status, with_signal


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (137, "SIGKILL, killed"),
        (139, "SIGSEGV, segmentation fault"),
        (143, "SIGTERM, terminated"),
        (134, "SIGABRT, aborted"),
        (None, ""),
        (0, ""),
        (3, ""),
        (127, ""),
        (128, ""),
        (128 + 65, ""),
        (255, ""),
        (3221225477, ""),
    ],
)
def test_a_status_of_a_signal_is_explained(status: int | None, text: str) -> None:
    assert explain_exit_status(status) == text


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("exit status 139", "exit status 139 (SIGSEGV, segmentation fault)"),
        ("exit status 3", "exit status 3"),
        ("out of memory", "out of memory"),
        ("exit status 1394", "exit status 1394"),
    ],
)
def test_a_failure_reason_names_the_signal(reason: str, text: str) -> None:
    assert with_signal(reason) == text
