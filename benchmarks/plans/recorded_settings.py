"""The settings of the control plane, with a recorder of plans on each connection.

`benchmarks.plans` starts the processes of its stand with these settings. PLANS_FOLDER names the
folder of the records, one file for each process.
"""

import os
from pathlib import Path
from typing import Any

from django.db.backends.signals import connection_created

from benchmarks.plans.recorder import Recorder
from controlplane.config.settings import *  # noqa: F403

_RECORDER = Recorder(Path(os.environ["PLANS_FOLDER"]) / f"{os.getpid()}.jsonl")


def _install(*, connection: Any, **_: Any) -> None:
    if _RECORDER not in connection.execute_wrappers:
        connection.execute_wrappers.append(_RECORDER)


connection_created.connect(_install, weak=False)
