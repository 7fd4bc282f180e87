"""Traces of jobs, sent to an OTLP receiver of this test: spans equal the written history."""

import gzip
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.conf import settings as django_settings
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from structlog.contextvars import bound_contextvars

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.traces import export_traces
from controlplane.contract.messages.orders import GroupSpec, Orders, RunAttempt
from controlplane.contract.messages.phases import PhaseChange, PhaseKind
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job, Task, TaskGroup, Transition, Walk
from controlplane.ticks import tracing
from tests.integration.loop.conftest import FakeCell, Loop
from workers.attempt.environment import build_environment

# An export waits for older transactions of the whole server, also for those of other tests.
pytestmark = pytest.mark.serial

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Receiver:
    """A receiver of OTLP over HTTP: each accepted span, in the order of its arrival."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.headers: list[Mapping[str, str]] = []
        self.is_up = True
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                is_accepted = receiver.is_up and self.path == "/v1/traces"
                if is_accepted:
                    receiver.headers.append(dict(self.headers))
                    request = ExportTraceServiceRequest.FromString(body)
                    receiver.spans += [
                        span
                        for resource in request.resource_spans
                        for scope in resource.scope_spans
                        for span in scope.spans
                    ]
                self.send_response(200 if is_accepted else 400)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def named(self, name: str) -> Span:
        [span] = [span for span in self.spans if span.name == name]
        return span


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    receiver = Receiver()
    settings.CELLRUN = django_settings.CELLRUN.model_copy(
        update={
            "tracing": True,
            "otlp_endpoint": receiver.url,
            "otlp_headers": (("authorization", "Bearer abc"),),
        }
    )
    yield receiver
    receiver.close()


@pytest.fixture
def cell(loop: Loop, receiver: Receiver) -> FakeCell:
    # The first run begins at the end of the history.
    tracing.run()
    return loop.cell()


def export() -> None:
    """Run the tick twice: the first run reads the end up to which the second one exports."""
    tracing.run()
    tracing.run()


def at(nanoseconds: int) -> datetime:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=rest // 1_000)


def written(**row: Any) -> datetime:
    """Return the time of the one row of the history with these columns."""
    return Transition.objects.get(**row).at


def times(span: Span) -> tuple[datetime, datetime]:
    return at(span.start_time_unix_nano), at(span.end_time_unix_nano)


def run_with_phases(loop: Loop, cell: FakeCell) -> tuple[Job, Attempt]:
    """Run a job of one task, with phases, up to its release behind its end."""
    job = loop.submit()
    loop.place()
    [attempt] = loop.attempts(job)
    started = attempt.created_at.timestamp()
    cell.report(AttemptReport(str(attempt.uid), 0, S.BUILDING))
    texts = ("preparing", "pulling", "creating")
    phases = tuple(
        PhaseChange(number, started + number / 1000, PhaseKind.PHASE, text)
        for number, text in enumerate(texts, 1)
    )
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING, phases=phases))
    cell.report(AttemptReport(str(attempt.uid), 0, S.SUCCEEDED, exit_code=0))
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    attempt.refresh_from_db()
    return job, attempt


def test_one_trace_leads_from_the_submission_to_the_release_with_the_times_of_the_history(
    loop: Loop, cell: FakeCell, receiver: Receiver
) -> None:
    job, attempt = run_with_phases(loop, cell)
    export()
    job.refresh_from_db()
    [task] = loop.tasks(job)
    root, whole = receiver.named("job job"), receiver.named("task main.0")
    tried, waiting = receiver.named("attempt 1"), receiver.named("pending")
    assert len({span.trace_id for span in receiver.spans}) == 1
    assert root.parent_span_id == b""
    assert whole.parent_span_id == root.span_id
    assert {tried.parent_span_id, waiting.parent_span_id} == {whole.span_id}
    for name in ("assigned", "building", "running", "release"):
        assert receiver.named(name).parent_span_id == tried.span_id
    for name in ("preparing", "pulling", "creating"):
        assert receiver.named(name).parent_span_id == receiver.named("building").span_id
    placed = written(task_id=task.pk, to_state=S.ASSIGNED)
    built = written(task_id=task.pk, from_state=S.ASSIGNED, to_state=S.BUILDING)
    ran = written(task_id=task.pk, from_state=S.BUILDING, to_state=S.RUNNING)
    ended = written(task_id=task.pk, from_state=S.RUNNING, to_state=S.SUCCEEDED)
    finished = written(job_id=job.pk, task_id=None, to_state=S.SUCCEEDED)
    assert times(root) == times(whole) == (job.created_at, finished)
    assert finished == ended
    assert times(waiting) == (job.created_at, placed)
    assert times(receiver.named("assigned")) == (placed, built)
    assert times(receiver.named("building")) == (built, ran)
    assert times(receiver.named("running")) == (ran, ended)
    pulled = written(task_id=task.pk, message="pulling")
    assert times(receiver.named("pulling")) == (
        pulled,
        written(task_id=task.pk, message="creating"),
    )
    assert times(tried) == (attempt.created_at, attempt.released_at)
    assert times(receiver.named("release")) == (attempt.finished_at, attempt.released_at)
    assert receiver.headers[0]["authorization"] == "Bearer abc"


def test_a_retry_has_further_spans_in_the_same_trace(
    loop: Loop, cell: FakeCell, receiver: Receiver
) -> None:
    job = loop.submit(retries={"failure": 1})
    loop.place()
    [first] = loop.attempts(job)
    cell.report(AttemptReport(str(first.uid), 0, S.RUNNING))
    cell.end(first, S.FAILED, exit_code=3)
    export()
    assert receiver.named("attempt 1").status.code == Status.STATUS_CODE_ERROR
    Task.objects.update(not_before=None)
    loop.place()
    second = loop.attempts(job)[1]
    cell.report(AttemptReport(str(second.uid), 0, S.RUNNING))
    cell.end(second, S.SUCCEEDED, exit_code=0)
    export()
    parents = {receiver.named(f"attempt {number}").parent_span_id for number in (1, 2)}
    assert parents == {receiver.named("task main.0").span_id}
    assert len({span.trace_id for span in receiver.spans}) == 1
    assert len([span for span in receiver.spans if span.name == "pending"]) == 2
    assert len({span.span_id for span in receiver.spans}) == len(receiver.spans)


def test_a_job_joins_the_trace_of_its_request_and_the_program_joins_that_of_its_attempt(
    loop: Loop, cell: FakeCell, receiver: Receiver
) -> None:
    with bound_contextvars(traceparent=CALLER):
        job = loop.submit()
    loop.place()
    [attempt] = loop.attempts(job)
    [order] = [order for order in cell.orders() if isinstance(order, Orders)]
    [run], [spec] = order.runs, order.specs
    variable = build_environment(run, spec, cell.name)["TRACEPARENT"]
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING))
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    export()
    version, trace_id, parent, flags = CALLER.split("-")
    root = receiver.named("job job")
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (trace_id, parent)
    tried = receiver.named("attempt 1").span_id.hex()
    assert variable == f"{version}-{trace_id}-{tried}-{flags}"


def test_a_page_that_is_sent_again_after_a_death_before_the_cursor_has_the_same_ids(
    loop: Loop, cell: FakeCell, receiver: Receiver
) -> None:
    run_with_phases(loop, cell)
    tracing.run()
    cursor = Walk.objects.get(name="traces").after
    tracing.run()
    first = [span.SerializeToString() for span in receiver.spans]
    assert first
    receiver.spans.clear()
    # The process died between the answer of the receiver and the commit of the cursor.
    Walk.objects.filter(name="traces").update(after=cursor)
    export()
    assert [span.SerializeToString() for span in receiver.spans] == first


def test_spans_wait_for_a_receiver_that_is_down_and_arrive_once_it_is_back(
    loop: Loop, cell: FakeCell, receiver: Receiver
) -> None:
    job, _ = run_with_phases(loop, cell)
    receiver.is_up = False
    export()
    assert receiver.spans == []
    assert loop.state(job) == "SUCCEEDED"
    receiver.is_up = True
    export()
    assert receiver.named("attempt 1")
    count = len(receiver.spans)
    export()
    assert len(receiver.spans) == count


def test_a_long_backlog_is_sent_in_pages(loop: Loop, cell: FakeCell, receiver: Receiver) -> None:
    job = loop.submit(replicas=400, resources={"cpu": 0.01, "memory": "6Mi"})
    cancel_job(job_id=job.pk, actor="owner", reason="", force=False, now=clock.now())
    loop.converge()
    other = loop.submit(replicas=400, resources={"cpu": 0.01, "memory": "6Mi"})
    cancel_job(job_id=other.pk, actor="owner", reason="", force=False, now=clock.now())
    loop.converge()
    tracing.run()
    sizes = list[int]()
    is_more = export_traces(lambda spans: not sizes.append(len(spans)), now=clock.now(), pages=1)
    assert is_more
    assert len(sizes) == 1
    tracing.run()
    # Each task has its own span and that of its waiting.
    assert sizes[0] + len(receiver.spans) == 2 * (2 * 400 + 1)


@pytest.mark.parametrize(("ratio", "flags", "is_traced"), [(0.0, "01", True), (1.0, "00", False)])
def test_the_sampling_of_the_request_takes_precedence_over_the_ratio(
    loop: Loop,
    cell: FakeCell,
    settings: Any,
    ratio: float,
    flags: str,
    is_traced: bool,
) -> None:
    settings.CELLRUN = settings.CELLRUN.model_copy(update={"trace_ratio": ratio})
    with bound_contextvars(traceparent=CALLER[:-2] + flags):
        loop.submit()
    assert ("trace" in TaskGroup.objects.get().launch) is is_traced


def test_without_tracing_a_job_has_no_trace_and_its_program_no_variable(loop: Loop) -> None:
    with bound_contextvars(traceparent=CALLER):
        loop.submit()
    group = TaskGroup.objects.get()
    assert "trace" not in group.launch
    run = RunAttempt("u", group.pk, 1, 0, 1, 0.0)
    spec = GroupSpec(group.pk, group.job_id, "job", "main", 1)
    assert "TRACEPARENT" not in build_environment(run, spec, "cell-1")
