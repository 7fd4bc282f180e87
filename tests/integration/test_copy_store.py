"""`manage.py copy_store`: an installation moves to an object store, whatever interrupts it."""

import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command

from controlplane.storage import folder
from controlplane.storage.copying import copy_store
from controlplane.storage.current import current_store
from controlplane.storage.folder.root import root
from controlplane.storage.folder.trash import discard
from controlplane.storage.interface import AnnouncedFile
from controlplane.storage.objects.bucket import Bucket
from tests.harness.object_store import (
    FaultyProxy,
    StoreRequest,
    environment,
    s3_environment,
    s3_server,
)
from tests.harness.store_limits import reserve_nothing
from tests.integration.api.conftest import change_setting

pytestmark = [pytest.mark.stack, pytest.mark.django_db]
ROOT = Path(__file__).parents[2]
UIDS = [UUID(int=number << 64 | number) for number in range(1, 9)]
MOST = 10**9
LONG_AGO = 1_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as url:
        yield url


@pytest.fixture
def proxy(server: str, settings: Any, tmp_path: Path) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(server)
    change_setting(settings, artifact_root=tmp_path / "files")
    with environment(**s3_environment(proxy.url)):
        yield proxy
    proxy.close()


@pytest.fixture
def target(proxy: FaultyProxy) -> str:
    return f"s3://bucket/{uuid4()}"


def file_of(uid: UUID, name: str, content: bytes) -> AnnouncedFile:
    sha256 = hashlib.sha256(content).hexdigest()
    return AnnouncedFile(uid, f"zz/default/default/1/2/{uid}", name, len(content), sha256)


def put(uid: UUID, name: str, content: bytes, *, sent: int | None = None) -> int:
    file = file_of(uid, name, content)
    return current_store().put_piece(
        file, offset=0, content=content[:sent], most=lambda: MOST, reserve=reserve_nothing
    )


@pytest.fixture(autouse=True)
def files(proxy: FaultyProxy) -> None:
    """Inputs, output, complete and incomplete artifacts of some attempts."""
    for uid in UIDS:
        current_store().put_input(b"input " + uid.bytes)
        folder.append_log(uid, "stdout", offset=0, content=b"out %d\n" % uid.int)
        folder.append_log(uid, "stderr", offset=0, content=b"err\n")
        assert put(uid, "a b/ü", b"artifact " + uid.bytes) == 25
        assert put(uid, "begun", b"incomplete", sent=3) == 3
    gone = uuid4()
    folder.append_log(gone, "stdout", offset=0, content=b"x")
    discard(root() / "logs" / gone.hex[-2:] / str(gone))
    for path in root().rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))


def copy(url: str) -> str:
    text = io.StringIO()
    call_command("copy_store", url, stdout=text)
    return text.getvalue()


def check_moved(settings: Any, url: str) -> None:
    """All is readable in the object store, and work continues there."""
    change_setting(settings, store_url=url)
    store = current_store()
    for uid in UIDS:
        digest = hashlib.sha256(b"input " + uid.bytes).hexdigest()
        assert store.read_input(digest) == b"input " + uid.bytes
        line = b"out %d\n" % uid.int
        assert store.read_log(uid, "stdout", offset=0, limit=999).content == line
        assert store.append_log(uid, "stdout", offset=len(line), content=b"+\n") == len(line) + 2
        whole = file_of(uid, "a b/ü", b"artifact " + uid.bytes)
        file = store.open_artifact(whole.prefix, whole.name)
        assert file is not None
        with file:
            assert file.read() == b"artifact " + uid.bytes
        # A cell that did not get the answer to its last piece.
        assert (
            store.put_piece(
                whole, offset=25, content=b"", most=lambda: MOST, reserve=reserve_nothing
            )
            == 25
        )
        assert store.open_artifact(whole.prefix, "begun") is None
        assert put(uid, "begun", b"incomplete") == 10
    assert Bucket(url).page("discarded") == []


def test_installation_moves_to_an_object_store(settings: Any, target: str) -> None:
    assert copy(target) == "40 files with 611 bytes copied, 0 objects were there\n"
    assert copy(target).startswith("0 files with 0 bytes copied")
    check_moved(settings, target)


@pytest.mark.parametrize("after", [1, 7, 20, 39])
def test_copy_that_fails_is_resumed(
    settings: Any, target: str, proxy: FaultyProxy, after: int
) -> None:
    left = iter(range(after))

    def refuse_later(request: StoreRequest) -> int | None:
        is_over = request.method == "PUT" and next(left, None) is None
        return 403 if is_over else None

    proxy.faults = refuse_later
    with pytest.raises(CommandError, match="run it again"):
        copy(target)
    proxy.faults = lambda request: None
    seen = len(proxy.seen)
    copy(target)
    puts = [request for request in proxy.seen[seen:] if request.method == "PUT"]
    assert len(puts) <= 40 - after + 1
    check_moved(settings, target)


def test_killed_copy_is_resumed(settings: Any, target: str, proxy: FaultyProxy) -> None:
    command = [sys.executable, str(ROOT / "manage.py"), "copy_store", target]
    variables = {**os.environ, "CELLRUN_ARTIFACT_ROOT": str(settings.CELLRUN.artifact_root)}
    process = subprocess.Popen(command, env=variables, cwd=ROOT)
    left = iter(range(15))

    def kill_later(request: StoreRequest) -> None:
        if request.method == "PUT" and next(left, None) is None:
            process.kill()

    proxy.faults = kill_later
    assert process.wait(60) == -9
    proxy.faults = lambda request: None
    assert copy(target).startswith(("2", "1"))
    check_moved(settings, target)


def test_what_changed_between_two_runs_is_copied_again(settings: Any, target: str) -> None:
    copy(target)
    uid = UIDS[0]
    size = len(b"out %d\n" % uid.int)
    folder.append_log(uid, "stdout", offset=size, content=b"more\n")
    assert put(uid, "new", b"later") == 5
    *_, done = copy_store(root(), target)
    assert done.files == 3, "the output, the artifact and its mark"
    change_setting(settings, store_url=target)
    store = current_store()
    assert store.find_tail(uid, "stdout", lines=1, limit=100) == size
    assert store.read_log(uid, "stdout", offset=size, limit=99).content == b"more\n"
    assert len(Bucket(target).page(f"logs/{uid.hex[-2:]}/{uid}/stdout")) == 1
    assert store.open_artifact(file_of(uid, "new", b"later").prefix, "new") is not None


def test_copy_after_the_move_keeps_output_that_was_written_since(
    settings: Any, target: str
) -> None:
    copy(target)
    uid = UIDS[0]
    size = len(b"out %d\n" % uid.int)
    change_setting(settings, store_url=target)
    current_store().append_log(uid, "stdout", offset=size, content=b"more\n")
    change_setting(settings, store_url="")
    copy(target)
    change_setting(settings, store_url=target)
    assert current_store().read_log(uid, "stdout", offset=size, limit=99).content == b"more\n"


def test_copy_needs_a_folder(settings: Any, target: str, tmp_path: Path) -> None:
    change_setting(settings, artifact_root=tmp_path / "missing")
    with pytest.raises(CommandError, match="there is no folder"):
        copy(target)
    change_setting(settings, store_url=target)
    with pytest.raises(CommandError, match="the copy is over"):
        copy(target)


@pytest.mark.parametrize("url", ["s3:bucket", "http://bucket/prefix", "file:///tmp/x", "s3://b?x"])
def test_address_that_is_no_object_store_is_refused(url: str) -> None:
    with pytest.raises(CommandError, match="expected an"):
        copy(url)
