"""How cells are reached, and whose messages to believe."""

from collections.abc import Iterable

from django.conf import settings

from controlplane.domain.cells.keys import CellAddress, cell_key
from controlplane.models import Cell
from controlplane.queries.sql import rows


def load_addresses(cell_ids: Iterable[int]) -> dict[int, CellAddress]:
    """The addresses of the cells' present incarnations; cells that never registered have none."""
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
    """The cell's key, derived from the installation's secret."""
    return cell_key(settings.SECRET_KEY, name=cell.name, salt=cell.key_salt)


def find_keys(names: Iterable[str]) -> dict[str, tuple[int, bytes]]:
    """Cell id and key of the enrolled cells among `names`."""
    return {
        cell.name: (cell.pk, key_of(cell)) for cell in Cell.objects.filter(name__in=list(names))
    }
