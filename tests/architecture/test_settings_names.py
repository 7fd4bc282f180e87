"""One list of setting names, and each side reads exactly its own part of it."""

import re

from controlplane.config.env import SETTING_NAMES
from controlplane.config.process_settings import OF_TRACES
from controlplane.contract.secret_files import STORE_CREDENTIALS
from controlplane.contract.settings_names import CELL, CONTROL_PLANE, FLEET
from tests.architecture.source import ROOT

NAME = re.compile(r'"(CELLRUN_[A-Z_]+)"')


def test_the_control_plane_has_a_field_for_each_of_its_names() -> None:
    others = {"DATABASE_URL", "CELERY_BROKER_URL", *STORE_CREDENTIALS, *OF_TRACES}
    assert set(SETTING_NAMES) == {*CONTROL_PLANE, *others}


def test_cell_reads_exactly_its_listed_settings() -> None:
    read = set(NAME.findall((ROOT / "workers/config.py").read_text())) - {"CELLRUN_URL"}
    assert read == set(CELL)


def test_fleet_reads_its_own_settings_and_sets_some_of_a_cell() -> None:
    read = set(NAME.findall((ROOT / "workers/fleet_config.py").read_text()))
    assert read - set(CELL) == set(FLEET)


def test_the_environment_is_read_in_two_places_only() -> None:
    """Of the processes that run for long; the stack, the command and one-off commands aside."""
    allowed = (
        "controlplane/config/env.py",
        "controlplane/config/asgi.py",  # names the settings module for Django
        "controlplane/config/wsgi.py",
        "controlplane/config/celery.py",
        "controlplane/config/inbox.py",
        "controlplane/config/flower/app.py",  # hands the login in a file to Flower
        "controlplane/config/stack/",
        "controlplane/management/commands/bootstrap.py",
        "workers/config.py",
        "workers/__main__.py",
        "workers/fleet.py",
        "workers/drivers/docker/connection.py",  # DOCKER_HOST, which is Docker's and not ours
        "workers/drivers/process/engine.py",  # what a plain process inherits: PATH
        "workers/guard/link.py",  # what a guard inherits: nothing of ours, and so no secret
    )
    readers = [
        str(path.relative_to(ROOT))
        for package in ("controlplane", "workers")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"os\.(environ|getenv)", path.read_text())
        and not str(path.relative_to(ROOT)).startswith(allowed)
    ]
    assert readers == []
