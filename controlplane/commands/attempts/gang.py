"""The gang as its members receive it, sealed for a cell that runs one of them."""

from uuid import UUID

from controlplane.commands.attempts.launch_context import seal_for
from controlplane.queries.attempts.gang import find_gang_of, load_gang


def seal_gang(*, cell: str, uid: UUID, mac: str) -> bytes:
    """The gang of attempt `uid` of `cell`, whose signature was checked. Raises NotFound."""
    body = load_gang(find_gang_of(uid)).body()
    return seal_for(cell=cell, uid=uid, door="gang", mac=mac, body=body)
