"""A secret goes from a command to a container, and is in no file, log or answer on its way."""

import base64
import hashlib
import json
import secrets

import pytest

from cellrun import ApiError, Session
from tests.e2e.engine import EngineEvents
from tests.e2e.stack import RunningStack, wait_until
from tests.e2e.work import run_to_end, shell_job, whole_log
from tests.harness.live_files import content_of, files_below
from workers.secret_folder import MEMORY

pytestmark = [pytest.mark.stack, pytest.mark.engine, pytest.mark.xdist_group("one cell")]

SUMS = 'printf %s "$TOKEN" | sha256sum; sha256sum < /run/secrets/key; stat -c %a /run/secrets/key'
USES = [{"name": "token", "env": "TOKEN"}, {"name": "key", "path": "/run/secrets/key"}]


def test_a_secret_reaches_its_task_and_nothing_else(
    stack: RunningStack, session: Session, operator: Session
) -> None:
    values = {name: f"{name}-{secrets.token_hex(16)}" for name in ("token", "key")}
    for name, value in values.items():
        operator.put_secret(name, {"value": value})
    with EngineEvents(stack.installation) as events:
        job, task = run_to_end(session, shell_job(SUMS, secrets=USES))
        assert job["state"] == "SUCCEEDED", task
        assert events.starts_by_task(job["id"]) == {task["id"]: 1}
    assert task["attempt_uid"] is not None
    words = whole_log(session, task["attempt_uid"]).split()
    digests = [hashlib.sha256(values[name].encode()).hexdigest() for name in ("token", "key")]
    assert words == [digests[0], "-", digests[1], "-", "444"]

    answers = json.dumps([job, task, session.secrets(), *session.history("jobs", job["id"])])
    signs = [sign for value in values.values() for sign in _forms(value)]
    assert not any(sign.decode() in answers for sign in signs)
    # The database, its log, the stack's logs, the cell's journal, workspaces, logs.
    files = files_below(stack.home)
    assert len(files) > 500
    assert [path for path in files if any(sign in content_of(path) for sign in signs)] == []
    mine = f"cellrun-{stack.installation}-*"
    wait_until(lambda: not list(MEMORY.glob(mine)), seconds=30, what="no secret is in memory")


def test_missing_secret_at_the_task_start_is_a_user_failure(
    session: Session,
) -> None:
    spec = shell_job("true", secrets=[{"name": "late", "path": "/late"}])
    with pytest.raises(ApiError) as refused:
        session.submit(spec)
    assert refused.value.status == 422
    job, task = run_to_end(session, {**spec, "allow_unsatisfiable": True})
    assert (job["state"], task["state"], task["failure_kind"]) == ("FAILED", "FAILED", "user")
    assert "the project has no late" in task["failure_reason"]


def _forms(value: str) -> tuple[bytes, bytes]:
    return value.encode(), base64.b64encode(value.encode())
