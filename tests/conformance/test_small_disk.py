"""Inputs that do not fit on the disk of the cell are a system failure that names the cause."""

from pathlib import Path

import pytest

from controlplane.contract.messages.orders import Input
from controlplane.contract.states import FailureKind
from tests.conformance.kit import made_kit
from tests.harness.small_disk import mounted
from tests.harness.web import Web
from workers.attempt.outcome import DISK


@pytest.mark.engine
@pytest.mark.usefixtures("image")
def test_an_input_that_does_not_fit_is_a_system_failure(web: Web, tmp_path: Path) -> None:
    web.files["/large"] = bytes(8 << 20)
    with mounted(tmp_path / "disk", 6) as disk, made_kit("docker", disk.folder / "cell") as kit:
        launch = kit.launch("true", inputs=(Input("/in/large", f"{web.url}/large"),))
        kit.driver.start(launch)
        ended = kit.events.ended(launch.uid)
        assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, DISK)
        assert ended.started_at is None
        assert "no space left" in (ended.message or "").lower()
