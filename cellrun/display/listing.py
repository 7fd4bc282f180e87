"""A table whose last columns are for wide output only."""

from collections.abc import Sequence

from rich.table import Table


class Listing(Table):
    """Columns and rows without lines. The last `wide` columns are for `--output wide`."""

    def __init__(self, columns: Sequence[str], wide: Sequence[str] = ()) -> None:
        super().__init__(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        self._wide = len(wide)
        for name in (*columns, *wide):
            self.add_column(name, overflow="fold", min_width=len(name))

    def drop_wide(self) -> None:
        """Remove the wide columns."""
        if self._wide:
            del self.columns[-self._wide :]
            self._wide = 0


def new_table(*columns: str, wide: Sequence[str] = ()) -> Listing:
    """Return an empty table with these columns, and more for wide output."""
    return Listing(columns, wide)
