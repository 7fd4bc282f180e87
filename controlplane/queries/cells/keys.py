"""Load addresses and keys of cells."""

from collections.abc import Iterable

from django.conf import settings

from controlplane.domain.cells.keys import CellAddress, cell_key
from controlplane.models import Cell
from controlplane.queries.sql import rows


def load_addresses(cell_ids: Iterable[int]) -> dict[int, CellAddress]:
    """Return the addresses of the cells' current incarnations; omit cells that never registered."""
    found = rows(
        """
        SELECT id, name, incarnation, key_salt FROM controlplane_cell
        WHERE id = ANY(%s) AND incarnation <> ''
        """,
        [list(cell_ids)],
    )
    return {
        cell_id: CellAddress(
            cell_id, name, incarnation, cell_key(settings.SECRET_KEY, name=name, salt=salt)
        )
        for cell_id, name, incarnation, salt in found
    }


def key_of(cell: Cell) -> bytes:
    """Return the cell's key, derived from the installation's secret."""
    return cell_key(settings.SECRET_KEY, name=cell.name, salt=cell.key_salt)


def find_keys(names: Iterable[str]) -> dict[str, tuple[int, bytes]]:
    """Return the ids and keys of the enrolled cells among `names`."""
    return {
        cell.name: (cell.pk, key_of(cell)) for cell in Cell.objects.filter(name__in=list(names))
    }
