"""Following logs: every line once and whole, of every attempt, to the very end."""

from cellrun.api.session import Session
from cellrun.follow import LogFollower, follow_job
from tests.unit.client.documents import a_job, a_page, a_task
from tests.unit.client.stub_server import Api


def serve_log(api: Api, uid: str, *pieces: bytes) -> None:
    """Answer with `pieces`, one after the other, then with nothing (both streams share them)."""
    cursor = 0
    for piece in pieces:
        cursor += len(piece)
        api.answer(f"GET /api/v1/attempts/{uid}/logs", piece, X_Next_Cursor=str(cursor))
    api.answer(f"GET /api/v1/attempts/{uid}/logs", b"", X_Next_Cursor=str(cursor))


def only_stdout(session: Session, lines: list[str]) -> LogFollower:
    return LogFollower(session, lambda name, stream, line: lines.append(f"{name} {stream} {line}"))


def test_line_split_between_reads_is_written_whole(api: Api, session: Session) -> None:
    snow = "schön".encode()
    serve_log(api, "u-1", b"first\nse", b"cond " + snow[:4], snow[4:] + b"\nend")
    lines: list[str] = []
    follower = only_stdout(session, lines)
    follower.follow_attempt("u-1", "main.0", ended=False)
    follower.read()
    assert lines == ["main.0 stdout first", "main.0 stdout second schön"]
    follower.close()
    assert lines[2:] == ["main.0 stdout end"]


def test_attempts_that_ended_between_two_polls_are_read(api: Api, session: Session) -> None:
    attempts = [{"uid": f"u-{n}", "number": n} for n in (2, 1)]
    api.answer("GET /api/v1/tasks/70/attempts", a_page(*attempts))
    serve_log(api, "u-1", b"one\n")
    serve_log(api, "u-2", b"two\n")
    lines: list[str] = []
    follower = only_stdout(session, lines)
    follower.follow_task(a_task(state="RUNNING", attempt_number=2, attempt_uid="u-2"))
    follower.read()
    assert lines == ["main.0 stdout one", "main.0 stdout two"]


def test_follow_job_ends_only_after_the_log_is_complete(api: Api, session: Session) -> None:
    ended = a_task(state="SUCCEEDED", attempt_number=1, attempt_uid="u-1")
    api.answer("GET /api/v1/jobs/7", a_job(state="SUCCEEDED"))
    api.answer("GET /api/v1/jobs/7/tasks", a_page(ended))
    api.answer("GET /api/v1/attempts/u-1", {"uid": "u-1", "released_at": "2026-11-20T12:00:00Z"})
    # Nothing at first: what it wrote arrives after the report of its end.
    for stream_answer in (b"", b"", b"late\n"):
        cursor = str(len(stream_answer))
        api.answer("GET /api/v1/attempts/u-1/logs", stream_answer, X_Next_Cursor=cursor)
    api.answer("GET /api/v1/attempts/u-1/logs", b"", X_Next_Cursor="5")
    lines: list[str] = []
    job = follow_job(session, 7, lambda *line: lines.append(line[2]), deadline_seconds=20)
    assert job["state"] == "SUCCEEDED"
    assert "late" in lines
