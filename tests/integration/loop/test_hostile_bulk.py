"""Bulk operations of users that are hostile, or that lose their role while one runs."""

from typing import Any

import pytest

from controlplane.commands import bulk as commands
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.tenancy.accounts import create_user
from controlplane.domain.roles import Role
from controlplane.models import Alert, ApiToken, Membership
from tests.harness.members import admit
from tests.integration.loop.conftest import Loop
from tests.integration.loop.test_bulk import actor, start, submit


def test_an_operation_of_a_user_with_a_long_name_is_done_without_alerts(loop: Loop) -> None:
    """A manager creates service accounts with names of up to 150 characters."""
    submit(loop, 3)
    user, _ = create_user(name="u" * 150, password=None, is_operator=False)
    admit(user, Role.MANAGER)
    operation = start(actor(user))
    loop.converge()
    operation.refresh_from_db()
    assert list(Alert.objects.filter(kind="job_skipped")) == []
    assert (operation.state, operation.done, operation.refused) == ("done", 3, 0)


@pytest.mark.parametrize("withdrawn", [Membership, ApiToken])
def test_a_role_or_token_that_is_withdrawn_during_a_page_ends_the_operation(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, withdrawn: type[Any]
) -> None:
    jobs = submit(loop, 6)
    operation = start(actor(loop.owner))

    def cancel(**arguments: Any) -> None:
        cancel_job(**arguments)
        withdrawn.objects.filter(user=loop.owner).delete()

    monkeypatch.setattr(commands, "cancel_job", cancel)
    loop.converge()
    operation.refresh_from_db()
    assert operation.done == 1
    assert [loop.state(job) for job in jobs].count("KILLED") == 1
