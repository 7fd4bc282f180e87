"""Provide secrets to the task: in its environment, or in files in memory.

Secrets are never written to a journal or log. Every user of the engine can read the environment of
a container, but not the content of a file.
"""

import base64
import binascii
import errno
from dataclasses import replace

from controlplane.contract.messages.task_options import SecretUse
from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun
from workers.attempt.outcome import DISK, SECRET, WEB, AttemptFailed
from workers.attempt.runtime import PlacedFile
from workers.attempt.steps.inputs import checked_path
from workers.secret_folder import UnsafeSecretFolder


def write_secrets(attempt: AttemptRun) -> None:
    """Add the secrets of the launch context to environment and files. Raise AttemptFailed."""
    uses = attempt.launch.spec.secrets
    if not uses:
        return
    env = {use.env: _text(use, _value(attempt, use)) for use in uses if use.env is not None}
    attempt.launch = replace(attempt.launch, env={**attempt.launch.env, **env})
    files = [use for use in uses if use.path is not None]
    if not files:
        return
    paths = [checked_path("secret", use.path or "", SECRET) for use in files]
    try:
        sources = attempt.context.secrets.write(
            attempt.uid, [_value(attempt, use) for use in files]
        )
    except (OSError, UnsafeSecretFolder) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = DISK if is_full else SECRET
        raise AttemptFailed(FailureKind.SYSTEM, reason, f"secrets: {error}") from error
    attempt.placed = attempt.placed + [
        PlacedFile(path, source, bound=True) for path, source in zip(paths, sources, strict=True)
    ]


def _value(attempt: AttemptRun, use: SecretUse) -> bytes:
    try:
        return base64.b64decode(attempt.launch_context.secrets[use.name], validate=True)
    except (KeyError, binascii.Error, ValueError):
        message = f"secrets: web did not send the value of {use.name}"
        raise AttemptFailed(FailureKind.SYSTEM, WEB, message) from None


def _text(use: SecretUse, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        message = f"secrets: the variable {use.env} cannot hold {use.name}, which is not plain text"
        raise AttemptFailed(FailureKind.USER, SECRET, f"{message}: take it as a file")
    return text
