"""A cell sends large files to the links of an object store, which fails at times."""

import hashlib
from collections.abc import Callable, Iterator

import pytest

from controlplane.contract.messages.task_options import Output
from controlplane.storage.objects.bucket import Bucket
from tests.conformance.keeper import Keeper
from tests.conformance.kit import ProcessKit
from tests.conformance.test_artifacts import script
from tests.harness.object_store import (
    Fault,
    FaultyProxy,
    StoreRequest,
    environment,
    s3_environment,
    s3_server,
)
from tests.harness.web import Web
from workers.attempt.events import EndedEvent
from workers.attempt.outcome import OUTPUTS

pytestmark = pytest.mark.stack  # a server of 150 MB
SIZE = 3_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as url:
        yield url


@pytest.fixture
def proxy(server: str) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(server)
    yield proxy
    proxy.close()


@pytest.fixture
def bucket(proxy: FaultyProxy) -> Iterator[Bucket]:
    with environment(**s3_environment(proxy.url)):
        yield Bucket("s3://bucket/links")


@pytest.fixture
def keeper(process_kit: ProcessKit, web: Web, bucket: Bucket) -> Keeper:
    """A web server that gives links, as web with an object store does."""
    keeper = Keeper(web)
    keeper.serve(process_kit)
    keeper.link_to = lambda path: bucket.link("PUT", path.strip("/"))

    def size_of(path: str) -> int:
        found = bucket.find(path.strip("/"))
        return -1 if found is None else found.size

    keeper.find = size_of
    return keeper


def run(kit: ProcessKit) -> EndedEvent:
    """Run a task with a large and a small output."""
    text = f"cd $CELLRUN_ROOT/out; head -c {SIZE} /dev/urandom > large; echo small > small"
    launch = script(kit, text, Output("/out/large", "large"), Output("/out/small", "small"))
    kit.driver.start(launch)
    return kit.events.ended(launch.uid)


def in_turn(*faults: int) -> Callable[[StoreRequest], int | None]:
    """Faults of the next uploads, in order."""
    left = iter(faults)
    return lambda request: next(left, None) if request.method == "PUT" else None


@pytest.mark.parametrize(
    "faults", [(), (503, 503), (Fault.CUT, 500), (Fault.LOST,), (403, 503, Fault.CUT, Fault.LOST)]
)
def test_large_output_is_sent_to_a_link_despite_faults(
    process_kit: ProcessKit, keeper: Keeper, bucket: Bucket, proxy: FaultyProxy, faults: tuple[int]
) -> None:
    proxy.faults = in_turn(*faults)
    ended = run(process_kit)
    assert ended.outputs is not None, ended
    large, small = ended.outputs
    content = bucket.read(f"api/v1/attempts/{ended.uid}/artifacts/large")
    assert content is not None
    assert (len(content), large["size"]) == (SIZE, SIZE)
    assert hashlib.sha256(content).hexdigest() == large["sha256"]
    assert keeper.kept[ended.uid] == {"small": b"small\n"}
    assert small["size"] == 6
    bodies = [len(request.body) for request in keeper.web.requests if "/large" in request.path]
    assert set(bodies) == {0}, "nothing of a large file passes through web"


def test_store_that_stays_away_is_a_system_failure(
    process_kit: ProcessKit, keeper: Keeper, proxy: FaultyProxy
) -> None:
    proxy.faults = lambda request: 503
    ended = run(process_kit)
    assert (ended.exit_code, ended.reason, ended.outputs) == (0, OUTPUTS, None)
    assert ended.message is not None
    assert "HTTP status 503 of the object store" in ended.message
    assert "Signature" not in ended.message
