"""Load addresses and keys of cells."""

from collections.abc import Iterable

from django.conf import settings

from controlplane.contract.wire.envelope import VERSION
from controlplane.domain.cells.keys import CellAddress, cell_key
from controlplane.models import Cell
from controlplane.queries.sql import rows


def load_addresses(cell_ids: Iterable[int]) -> dict[int, CellAddress]:
    """Return the addresses of the cells' current incarnations.

    Omit cells that never registered, and revoked ones, which get no messages.
    """
    found = rows(
        """
        SELECT id, name, incarnation, key_salt, versions ->> 'contract' FROM controlplane_cell
        WHERE id = ANY(%s) AND incarnation <> '' AND revoked_at IS NULL
        """,
        [list(cell_ids)],
    )
    return {
        cell_id: CellAddress(
            cell_id,
            name,
            incarnation,
            cell_key(settings.SECRET_KEY, name=name, salt=salt),
            _version(version),
        )
        for cell_id, name, incarnation, salt, version in found
    }


def _version(text: str | None) -> int:
    """Return the version of messages that a cell registered, by default the current one."""
    return int(text) if text and text.isascii() and text.isdigit() else VERSION


def load_current_keys(cell_ids: Iterable[int]) -> dict[int, bytes]:
    """Return the keys of the cells that are not revoked, by id."""
    found = rows(
        """
        SELECT id, name, key_salt FROM controlplane_cell
        WHERE id = ANY(%s) AND revoked_at IS NULL
        """,
        [list(cell_ids)],
    )
    return {
        cell_id: cell_key(settings.SECRET_KEY, name=name, salt=salt)
        for cell_id, name, salt in found
    }


def key_of(cell: Cell) -> bytes:
    """Return the cell's key, derived from the installation's secret."""
    return cell_key(settings.SECRET_KEY, name=cell.name, salt=cell.key_salt)


def find_keys(names: Iterable[str]) -> dict[str, tuple[int, bytes]]:
    """Return the ids and keys of the enrolled cells among `names`, without revoked ones."""
    found = rows(
        """
        SELECT id, name, key_salt FROM controlplane_cell
        WHERE name = ANY(%s) AND revoked_at IS NULL
        """,
        [list(names)],
    )
    return {
        name: (cell_id, cell_key(settings.SECRET_KEY, name=name, salt=salt))
        for cell_id, name, salt in found
    }
