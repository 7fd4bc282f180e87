"""Tests that run at the same time do not share files."""

import os

from django.conf import settings

from tests.harness.pgtest import PREFIX


def test_each_worker_stores_files_in_a_folder_of_its_own() -> None:
    folder = settings.CELLRUN.store_folder
    assert PREFIX in str(folder)
    assert os.environ.get("PYTEST_XDIST_WORKER", "") in str(folder)
