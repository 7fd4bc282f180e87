"""Cells from before the record of their secret key keep their keys."""

from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.contract.wire.keys import decode_key
from controlplane.models import Cell, Pool
from controlplane.queries.cells.keys import key_of

MIGRATION = import_module("controlplane.migrations.0011_cell_secret_key_id")


@pytest.mark.django_db
def test_key_of_an_earlier_cell_survives_a_later_secret_key(settings: Any) -> None:
    Pool.objects.get_or_create(name="default")
    key = decode_key(enroll_cell(name="cell-1", now=clock.now()))
    Cell.objects.update(secret_key_id="")
    with connection.schema_editor() as editor:
        MIGRATION.record_present_key(apps, editor)
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another key of more than 32 characters"
    assert key_of(Cell.objects.get()) == key
