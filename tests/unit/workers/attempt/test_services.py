"""What a cell knows of sessions and services: idleness, ports, and what their ends are called."""

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.contract.messages.orders import GroupSpec, RunAttempt, StopAttempt
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from tests.harness.cell_bench import Bench
from workers.agent.final_report import judge_end
from workers.attempt.environment import port_variable
from workers.attempt.events import EndedEvent, Launch, StartedEvent
from workers.attempt.health import get
from workers.attempt.idleness import SENT_BYTES, ActivitySample, is_active, read_sample
from workers.attempt.outcome import HEALTH, IDLE, LIFETIME, Exit, judge_exit
from workers.cell_attempt import CellAttempt
from workers.config import CellConfig
from workers.drivers.docker.container import container_body, ports_of, use_of
from workers.drivers.process.procfs import Ports
from workers.drivers.registry import address_of

LAST = ActivitySample(at=100.0, active_at=90.0, cpu_seconds=5.0, sent_bytes=1000, output_bytes=10)
QUIET = replace(LAST, at=110.0, cpu_seconds=5.099, sent_bytes=1000 + SENT_BYTES - 1)


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.accept()
    yield bench
    bench.close()


# ----------------------------------------------------------------------------- idleness


def test_negligible_use_counts_as_idle() -> None:
    assert not is_active(LAST, QUIET)


@pytest.mark.parametrize(
    "sample",
    [
        replace(QUIET, cpu_seconds=5.11),
        replace(QUIET, sent_bytes=1000 + SENT_BYTES),
        replace(QUIET, output_bytes=11),
        replace(QUIET, output_bytes=9),
    ],
)
def test_cpu_network_or_output_use_alone_counts_as_active(sample: ActivitySample) -> None:
    assert is_active(LAST, sample)


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"at": 1}'])
def test_unreadable_activity_sample_is_ignored(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "activity.json"
    if content is not None:
        path.write_text(content)
    assert read_sample(path) is None


# ----------------------------------------------------------------------------- ends


@pytest.mark.parametrize("reason", [IDLE, LIFETIME])
@pytest.mark.parametrize("code", [0, 137, 143])
def test_end_by_idle_or_lifetime_limit_is_killed_whatever_the_exit_code(
    reason: str, code: int
) -> None:
    verdict = judge_exit(Exit(code, out_of_memory=code == 137, stopped_for=reason))
    assert (verdict.kind, verdict.reason) == (None, reason)
    ended = EndedEvent("u", 5.0, code, verdict.kind, verdict.reason)
    assert judge_end(book(), ended).state is S.KILLED


def test_end_by_health_check_is_a_user_failure_unless_a_stop_was_ordered() -> None:
    verdict = judge_exit(Exit(0, stopped_for=HEALTH))
    assert (verdict.kind, verdict.reason) == (FailureKind.USER, HEALTH)
    ended = EndedEvent("u", 5.0, 0, verdict.kind, verdict.reason)
    assert judge_end(book(), ended).state is S.FAILED
    stopped = book()
    stopped.stop = StopAttempt("u", "cancelled")
    assert judge_end(stopped, ended).state is S.KILLED


def book(**spec: object) -> CellAttempt:
    return CellAttempt(RunAttempt("u", 1, 1, 0, 1, 60.0), GroupSpec(1, 1, "j", "g", 1, **spec))  # type: ignore[arg-type]


# ----------------------------------------------------------------------------- the cell


def test_a_cell_reports_addresses_with_the_start_and_the_end(ready: Bench) -> None:
    ready.run("u", "sleep", "30", ports=("http",))
    ready.events.append(StartedEvent("u", ready.now, "c", {"http": "10.0.0.5:1"}))
    ready.round()
    assert ready.reports()[-1].addresses == {"http": "10.0.0.5:1"}
    ready.wait(31)
    assert ready.reports()[-1].state is S.SUCCEEDED
    assert ready.reports()[-1].addresses == {"http": "10.0.0.5:1"}


def test_adopted_attempts_keep_their_start_times(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.run("runs", "sleep", "60")
    ready.run("builds", "build", "30", "sleep", "30")
    ready.wait(2)
    adopted: dict[str, Launch] = {}
    adopt = type(ready.driver).adopt

    def note(driver: object, launch: Launch) -> None:
        adopted[launch.uid] = launch
        adopt(driver, launch)  # type: ignore[arg-type]

    monkeypatch.setattr(type(ready.driver), "adopt", note)
    ready.boot()
    assert {uid: launch.started_at for uid, launch in adopted.items()} == {
        "runs": 1000.0,
        "builds": None,
    }


def test_memory_driver_enforces_the_lifetime(ready: Bench) -> None:
    ready.run("u", "sleep", "60", lifetime_seconds=5.0, timeout_seconds=9.0)
    ready.wait(8)
    assert (ready.reports()[-1].state, ready.reports()[-1].reason) == (S.KILLED, LIFETIME)


# ----------------------------------------------------------------------------- ports


def launch_of(**spec: object) -> Launch:
    found = book(**spec)
    return Launch(found.run, found.spec)


def test_container_gets_listen_ports_and_the_engine_chooses_host_ports() -> None:
    launch = launch_of(ports=("http", "my-web"))
    body = container_body(launch, labels={}, mounts=(), log_driver="", publish_on="127.0.0.1")
    assert {"CELLRUN_PORT_HTTP=20000", "CELLRUN_PORT_MY_WEB=20001"} <= set(body["Env"])
    assert body["ExposedPorts"] == {"20000/tcp": {}, "20001/tcp": {}}
    bound = [{"HostIp": "127.0.0.1", "HostPort": "0"}]
    assert body["HostConfig"]["PortBindings"] == {"20000/tcp": bound, "20001/tcp": bound}
    plain = container_body(launch_of(), labels={}, mounts=(), log_driver="")
    assert "PortBindings" not in plain["HostConfig"]
    assert "ExposedPorts" not in plain


def test_only_published_ports_have_addresses() -> None:
    shown = {"NetworkSettings": {"Ports": {"20001/tcp": [{"HostPort": "9"}], "20000/tcp": None}}}
    assert ports_of(shown, ("http", "my-web")) == {"my-web": 9}
    assert ports_of({}, ("http",)) == {}


def test_statistics_without_a_network_count_no_sent_bytes() -> None:
    assert use_of({"cpu_stats": {"cpu_usage": {"total_usage": 1_500_000_000}}}).sent_bytes == 0
    networks = {"eth0": {"tx_bytes": 5, "rx_bytes": 7}, "eth1": {"tx_bytes": 6}}
    assert use_of({"networks": networks}).sent_bytes == 11
    assert use_of({}).cpu_seconds == 0.0


def test_port_name_maps_to_an_environment_variable() -> None:
    assert port_variable("my-web-2") == "CELLRUN_PORT_MY_WEB_2"


def test_chosen_ports_are_unique_across_attempts() -> None:
    ports = Ports()
    names = [f"p{n}" for n in range(16)]
    given = [ports.choose(str(uid), names) for uid in range(20)]
    numbers = [port for chosen in given for port in chosen.values()]
    assert len(numbers) == len(set(numbers)) == 320
    assert [list(chosen) for chosen in given] == [names] * 20
    assert ports.choose("none", ()) == {}


@pytest.mark.parametrize(
    ("address", "web", "found"),
    [
        ("cells.example.com", "http://127.0.0.1:8000", "cells.example.com"),
        ("", "http://127.0.0.1:8000", "127.0.0.1"),
        ("", "", "127.0.0.1"),
    ],
)
def test_cell_address_is_configured_or_the_local_address_towards_web(
    tmp_path: Path, address: str, web: str, found: str
) -> None:
    config = CellConfig(
        name="a",
        key=b"",
        home=tmp_path,
        broker_url="",
        control_url=web,
        installation="i",
        capacity={},
        address=address,
    )
    assert address_of(config) == found


# ----------------------------------------------------------------------------- checks by HTTP


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers with the status that the path names."""

    def do_GET(self) -> None:
        self.send_response(int(self.path[1:]))
        self.send_header("Location", "/500")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("status", [200, 204, 302, 399])
def test_health_check_passes_on_success_or_redirect_without_following_it(
    server: str, status: int
) -> None:
    assert get(server, f"/{status}", 30.0) == ""


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_health_check_fails_on_an_error_status_and_reports_it(server: str, status: int) -> None:
    assert get(server, f"/{status}", 30.0) == f"GET /{status}: HTTP status {status}"


@contextlib.contextmanager
def speaker(words: bytes, *, pause: float) -> Iterator[str]:
    """Accepts one connection and sends `words`, a byte after each pause, until it is closed."""
    over = threading.Event()

    def speak() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                for byte in words:
                    connection.sendall(bytes([byte]))
                    over.wait(pause)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=speak)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("words", "pause", "text"),
    [(b"H" * 1000, 0.02, "timed out"), (b"+OK ready\r\n", 0.0, "not an HTTP response")],
)
def test_health_check_fails_on_a_non_http_answer_within_its_timeout(
    words: bytes, pause: float, text: str
) -> None:
    with speaker(words, pause=pause) as address:
        assert get(address, "/", 0.3) == f"GET /: {text}"


def test_health_check_fails_on_a_refused_connection(server: str) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as closed:
        address = f"127.0.0.1:{closed.server_address[1]}"
    assert get(address, "/", 30.0).startswith("GET /: [Errno ")
