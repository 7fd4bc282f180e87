"""What the process that sends a notification may open: Python's own files and public ones."""

import os

import pytest

from controlplane.outbox.notifications.child import SendGuard


@pytest.mark.parametrize(
    "path", ["/etc/cellrun/control.env", "/etc/shadow", "/etc/ssl/private/web.key", "/root/.netrc"]
)
def test_file_that_may_contain_secrets_is_not_opened(path: str) -> None:
    guard = SendGuard(())
    with pytest.raises(PermissionError):
        guard("open", (path, "r", os.O_RDONLY))
    assert guard.refused == "a local file was to be opened"


@pytest.mark.parametrize("path", ["/etc/mime.types", "/etc/ssl/certs/ca.pem", os.__file__])
def test_public_file_that_plugins_need_is_opened(path: str) -> None:
    SendGuard(())("open", (path, "r", os.O_RDONLY))
