"""Give a gang member its rank, its peers' names and addresses, and their common key."""

import errno
from dataclasses import replace

from controlplane.contract.codec import MalformedMessage
from controlplane.contract.messages.gang import Gang, GangMember
from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun
from workers.attempt.gangs import files, gang
from workers.attempt.outcome import DISK, SECRET, WEB, AttemptFailed
from workers.attempt.runtime import PlacedFile
from workers.secret_folder import UnsafeSecretFolder

# Of all names together; Linux accepts no variable of more than 128 KiB.
MAX_HOSTS_CHARS = 64 * 1024


def join_gang(attempt: AttemptRun) -> None:
    """Write the files of a member and record what must be bound. Raise AttemptFailed."""
    spec = attempt.launch.spec
    if not spec.is_gang:
        return
    described, me = _read(attempt)
    try:
        gang.make_files(attempt, described, me)
    except (OSError, UnsafeSecretFolder) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = DISK if is_full else SECRET
        raise AttemptFailed(FailureKind.SYSTEM, reason, f"gang: {error}") from error
    bound = [
        PlacedFile(files.GANG_FOLDER, gang.gang_folder(attempt), bound=True),
        PlacedFile(files.SSH_FOLDER, gang.ssh_folder(attempt), bound=True),
    ]
    if spec.task_type == "container":
        bound.append(PlacedFile(files.HOSTS_FILE, gang.hosts_path(attempt), bound=True))
    attempt.placed = [*attempt.placed, *bound]
    env = {**attempt.launch.env, **_variables(described, me)}
    attempt.launch = replace(attempt.launch, env=env)


def _read(attempt: AttemptRun) -> tuple[Gang, GangMember]:
    try:
        described = Gang.read(attempt.launch_context.gang)
    except MalformedMessage as error:
        raise AttemptFailed(FailureKind.SYSTEM, WEB, f"gang: {error}") from error
    me = gang.find_self(attempt, described)
    if me is None or described.key is None:
        raise AttemptFailed(
            FailureKind.SYSTEM, WEB, "gang: the launch context is of another member"
        )
    return described, me


def _variables(described: Gang, me: GangMember) -> dict[str, str]:
    names = ",".join(member.name for member in described.members)
    found = {"CELLRUN_GANG_SIZE": str(len(described.members)), "CELLRUN_GANG_RANK": str(me.rank)}
    return found | ({"CELLRUN_GANG_HOSTS": names} if len(names) <= MAX_HOSTS_CHARS else {})
