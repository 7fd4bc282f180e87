"""Load a gang in the form for its members; see `contract.messages.gang`."""

from uuid import UUID

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.conf import settings

from controlplane.contract.messages.gang import Gang, GangGroup, GangKey, GangMember
from controlplane.contract.states import STATE_OF, TaskState
from controlplane.contract.wire.keys import derive_key
from controlplane.domain.errors import NotFound
from controlplane.domain.state.states import ACTIVE
from controlplane.queries.sql import decoded, named_rows, rows, scalar

_DONE = (TaskState.RUNNING, TaskState.SUCCEEDED)


def find_gang_of(uid: UUID) -> int:
    """Return the gang of an attempt that has not ended. Raise NotFound."""
    job_id = scalar(
        """
        SELECT a.job_id FROM controlplane_attempt a JOIN controlplane_job j ON j.id = a.job_id
        WHERE a.uid = %s AND a.finished_at IS NULL AND j.coscheduled
        """,
        [uid],
    )
    if job_id is None:
        raise NotFound(f"there is no attempt {uid} of a gang that has not ended")
    return int(job_id)


def load_gang(job_id: int, *, with_key: bool = False) -> Gang:
    """Return the current members of a coscheduled job by rank; none if there is no such job."""
    groups, minima, of_all = _load_groups(job_id)
    members = []
    present = dict.fromkeys(groups, 0)
    for rank, row in enumerate(_load_members(job_id)):
        group_id, index, state, number, cell, addresses = row
        present[group_id] += STATE_OF[state] in _DONE
        members.append(
            GangMember(
                rank=rank,
                group=groups[group_id],
                index=index,
                state=STATE_OF[state],
                number=number,
                cell=cell,
                addresses=decoded(addresses) or {},
            )
        )
    each = all(present[group_id] >= minima[group_id] for group_id in groups)
    return Gang(
        members=tuple(members),
        is_ready=each and sum(present.values()) >= of_all,
        key=gang_key(job_id) if with_key else None,
    )


def _load_groups(job_id: int) -> tuple[dict[int, GangGroup], dict[int, int], int]:
    """Return the groups and their minima by id, and the minimum of the job."""
    found = named_rows(
        """
        SELECT g.id, g.name, g.task_type, g.launch -> 'network' AS network,
               g.launch -> 'ports' AS ports, g.min_available, j.min_available AS of_all
        FROM controlplane_taskgroup g JOIN controlplane_job j ON j.id = g.job_id
        WHERE g.job_id = %s ORDER BY g.position
        """,
        [job_id],
    )
    groups = {
        row.id: GangGroup(
            row.name,
            row.task_type,
            decoded(row.network) or "default",
            tuple(decoded(row.ports) or ()),
        )
        for row in found
    }
    minima = {row.id: row.min_available for row in found}
    return groups, minima, found[0].of_all if found else 0


def _load_members(job_id: int) -> list[tuple[int, int, int, int, str | None, str | None]]:
    return rows(
        """
        SELECT t.group_id, t.index, t.state, t.attempt_number, c.name, a.details -> 'addresses'
        FROM controlplane_task t
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        LEFT JOIN controlplane_attempt a ON a.uid = t.attempt_uid AND t.state = ANY(%s)
        LEFT JOIN controlplane_cell c ON c.id = a.cell_id
        WHERE t.job_id = %s ORDER BY g.position, t.index
        """,
        [[int(state) for state in sorted(ACTIVE)], job_id],
    )


def gang_key(job_id: int) -> GangKey:
    """Return the key pair of a gang, derived from the installation's secret and not stored."""
    seed = derive_key(
        settings.SECRET_KEY.encode(), salt=b"cellrun", info=f"cellrun gang {job_id}".encode()
    )
    key = Ed25519PrivateKey.from_private_bytes(seed)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return GangKey(private.decode(), f"{public.decode()} cellrun-gang-{job_id}")
