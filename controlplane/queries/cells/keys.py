"""Load addresses and keys of cells.

The row of a cell decides which keys are valid: none if it is revoked, otherwise the present one
and, during a rotation, the next one.
"""

from collections.abc import Iterable
from datetime import datetime

from django.conf import settings

from controlplane.contract.wire.envelope import VERSION
from controlplane.domain.cells.keys import CellAddress, cell_key, choose_secret_key, key_id
from controlplane.domain.cells.probes import Probe, probe_text, read_probe
from controlplane.models import Cell
from controlplane.queries.sql import rows

KEY_COLUMNS = "key_salt, secret_key_id, next_key_salt, next_secret_key_id"
"""The columns of a cell from which its keys are derived, as `derive_keys` takes them."""


def load_addresses(cell_ids: Iterable[int]) -> dict[int, CellAddress]:
    """Return the addresses of the cells' current incarnations.

    Omit cells that never registered, and revoked ones, which get no messages.
    """
    found = rows(
        f"""
        SELECT id, name, incarnation, versions ->> 'contract', {KEY_COLUMNS} FROM controlplane_cell
        WHERE id = ANY(%s) AND incarnation <> '' AND revoked_at IS NULL
        """,
        [list(cell_ids)],
        prepare=True,
    )
    return {
        # Messages to a cell use its present key until its first message under the next one.
        cell_id: CellAddress(
            cell_id, name, incarnation, derive_keys(name, *salts)[0], _version(version), salts[0]
        )
        for cell_id, name, incarnation, version, *salts in found
    }


def _version(text: str | None) -> int:
    """Return the version of messages that a cell registered, by default the current one."""
    return int(text) if text and text.isascii() and text.isdigit() else VERSION


def key_of(cell: Cell) -> bytes:
    """Return the cell's present key, derived from the installation's secret."""
    return keys_of(cell)[0]


def keys_of(cell: Cell) -> tuple[bytes, ...]:
    """Return the keys of a cell, as `derive_keys` does."""
    return derive_keys(
        cell.name,
        cell.key_salt,
        cell.secret_key_id,
        cell.next_key_salt,
        cell.next_secret_key_id,
    )


def derive_keys(
    name: str, salt: str, secret_key_id: str, next_salt: str, next_secret_key_id: str
) -> tuple[bytes, ...]:
    """Return the present key of a cell and, during a rotation, the next one.

    Each is derived from the CELLRUN_SECRET_KEY of its time: the present one, or one of
    CELLRUN_SECRET_KEY_FALLBACKS.
    """
    salts = [(salt, secret_key_id)]
    if next_salt:
        salts.append((next_salt, next_secret_key_id))
    return tuple(
        cell_key(choose_secret_key(_secret_keys(), key_id_), name=name, salt=salt_)
        for salt_, key_id_ in salts
    )


def _secret_keys() -> tuple[str, ...]:
    return (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)


def write_probe(shard: int, *, sent_at: datetime) -> str:
    """Return the text of a probe through a shard of the inbox."""
    return probe_text(settings.SECRET_KEY, Probe(shard, sent_at))


def find_probe(text: str) -> Probe | None:
    """Return a probe of this installation, or None if the text is no probe.

    Raise MalformedMessage, BadMac.
    """
    return read_probe(_secret_keys(), text)


def present_key_id() -> str:
    """Return the id of the present CELLRUN_SECRET_KEY."""
    return key_id(settings.SECRET_KEY)


def find_cells_of_former_keys() -> list[str]:
    """Return the names of the cells with a valid key from CELLRUN_SECRET_KEY_FALLBACKS."""
    valid = Cell.objects.filter(revoked_at=None)
    present = present_key_id()
    found = valid.exclude(secret_key_id=present, next_secret_key_id__in=("", present))
    return list(found.order_by("name").values_list("name", flat=True))


def find_keys(names: Iterable[str]) -> dict[str, tuple[int, dict[bytes, str]]]:
    """Return ids and keys (`derive_keys`) of the enrolled cells among `names`, but revoked ones.

    Each key has its salt, which no other key ever has.
    """
    found = rows(
        f"""
        SELECT id, name, {KEY_COLUMNS} FROM controlplane_cell
        WHERE name = ANY(%s) AND revoked_at IS NULL
        """,
        [list(names)],
        prepare=True,
    )
    return {
        name: (cell_id, dict(zip(derive_keys(name, *salts), salts[::2], strict=False)))
        for cell_id, name, *salts in found
    }
