"""A cell and its control plane."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.web import Web
from tests.unit.workers.output.upload_kit import Cell, Store


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as web:
        yield web


@pytest.fixture
def store(web: Web) -> Store:
    return Store(web)


@pytest.fixture
def cell(tmp_path: Path, web: Web, store: Store) -> Iterator[Cell]:
    cell = Cell(tmp_path, web.url)
    yield cell
    for shipper in cell.shippers:
        shipper.close()
