"""Load addresses and keys of cells."""

from collections.abc import Iterable

from django.conf import settings

from controlplane.contract.wire.envelope import VERSION
from controlplane.domain.cells.keys import CellAddress, cell_key, choose_secret_key, key_id
from controlplane.domain.cells.probes import probe_text, read_probe
from controlplane.models import Cell
from controlplane.queries.sql import rows


def load_addresses(cell_ids: Iterable[int]) -> dict[int, CellAddress]:
    """Return the addresses of the cells' current incarnations.

    Omit cells that never registered, and revoked ones, which get no messages.
    """
    found = rows(
        """
        SELECT id, name, incarnation, key_salt, secret_key_id,
               versions ->> 'contract' FROM controlplane_cell
        WHERE id = ANY(%s) AND incarnation <> '' AND revoked_at IS NULL
        """,
        [list(cell_ids)],
    )
    return {
        cell_id: CellAddress(
            cell_id,
            name,
            incarnation,
            derive_cell_key(name, salt, secret_key_id),
            _version(version),
        )
        for cell_id, name, incarnation, salt, secret_key_id, version in found
    }


def _version(text: str | None) -> int:
    """Return the version of messages that a cell registered, by default the current one."""
    return int(text) if text and text.isascii() and text.isdigit() else VERSION


def load_current_keys(cell_ids: Iterable[int]) -> dict[int, bytes]:
    """Return the keys of the cells that are not revoked, by id."""
    found = rows(
        """
        SELECT id, name, key_salt, secret_key_id FROM controlplane_cell
        WHERE id = ANY(%s) AND revoked_at IS NULL
        """,
        [list(cell_ids)],
    )
    return {
        cell_id: derive_cell_key(name, salt, secret_key_id)
        for cell_id, name, salt, secret_key_id in found
    }


def key_of(cell: Cell) -> bytes:
    """Return the cell's key, derived from the installation's secret."""
    return derive_cell_key(cell.name, cell.key_salt, cell.secret_key_id)


def derive_cell_key(name: str, salt: str, secret_key_id: str) -> bytes:
    """Return the key of a cell, derived from the CELLRUN_SECRET_KEY with which it was enrolled.

    That is the present one, or one of CELLRUN_SECRET_KEY_FALLBACKS.
    """
    chosen = choose_secret_key(_secret_keys(), secret_key_id)
    return cell_key(chosen, name=name, salt=salt)


def _secret_keys() -> tuple[str, ...]:
    return (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)


def write_probe(shard: int) -> str:
    """Return the text of a probe through a shard of the inbox."""
    return probe_text(settings.SECRET_KEY, shard)


def find_probe(text: str) -> int | None:
    """Return the shard of a probe of this installation, or None if the text is no probe.

    Raise MalformedMessage, BadMac.
    """
    return read_probe(_secret_keys(), text)


def present_key_id() -> str:
    """Return the id of the present CELLRUN_SECRET_KEY."""
    return key_id(settings.SECRET_KEY)


def find_cells_of_former_keys() -> list[str]:
    """Return the names of the cells whose valid key needs one of CELLRUN_SECRET_KEY_FALLBACKS."""
    found = Cell.objects.filter(revoked_at=None).exclude(secret_key_id=present_key_id())
    return list(found.order_by("name").values_list("name", flat=True))


def find_keys(names: Iterable[str]) -> dict[str, tuple[int, bytes]]:
    """Return the ids and keys of the enrolled cells among `names`, without revoked ones."""
    found = rows(
        """
        SELECT id, name, key_salt, secret_key_id FROM controlplane_cell
        WHERE name = ANY(%s) AND revoked_at IS NULL
        """,
        [list(names)],
    )
    return {
        name: (cell_id, derive_cell_key(name, salt, secret_key_id))
        for cell_id, name, salt, secret_key_id in found
    }
