"""Addresses that people name lead where they may, and nowhere else."""

import gzip
import io
import ipaddress
import os
import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.harness.web import Answer, Request, Web
from workers.remote_files import (
    PIECE_BYTES,
    Storage,
    StorageAway,
    StorageRefused,
    join,
    without_secrets,
)

LOCAL = (ipaddress.ip_network("127.0.0.0/8"),)


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as web:
        yield web


def read(storage: Storage, url: str, *, named: bool = True) -> bytes:
    return b"".join(storage.read(url, named=named))


def write(storage: Storage, url: str, content: bytes) -> None:
    for _ in storage.write(url, io.BytesIO(content)):
        pass


# ----------------------------------------------------------------------------- files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "a b").write_bytes(b"allowed")
    (tmp_path / "rooted").mkdir()
    (tmp_path / "rooted" / "secret").write_bytes(b"secret")
    return root


def test_a_file_below_a_root_is_read(root: Path) -> None:
    storage = Storage(file_roots=[root])
    assert read(storage, f"file://{root}/deep/a%20b") == b"allowed"


def test_no_file_is_read_without_allowed_roots(root: Path) -> None:
    with pytest.raises(StorageRefused):
        read(Storage(), f"file://{root}/deep/a%20b")


@pytest.mark.parametrize(
    "path",
    [
        "{root}/../rooted/secret",
        "{root}/%2e%2e/rooted/secret",
        "{root}/deep/../../rooted/secret",
        "{root}ed/secret",
        "{root}/link",
        "{root}/folder/secret",
        "{root}/deep",
        "{root}/none",
        "{root}/pipe",
        "{root}/nul%00",
        "{root}/deep/a%20b?x",
        "/etc/passwd",
        "//etc/passwd",
        "",
        "/",
    ],
)
def test_path_outside_the_roots_is_refused(root: Path, path: str) -> None:
    (root / "link").symlink_to(root.parent / "rooted" / "secret")
    (root / "folder").symlink_to(root.parent / "rooted")
    os.mkfifo(root / "pipe")
    storage = Storage(file_roots=[root])
    with pytest.raises(StorageRefused):
        read(storage, "file://" + path.format(root=root))
    if "deep" not in path and "none" not in path:
        with pytest.raises(StorageRefused):
            write(storage, "file://" + path.format(root=root) + "/new", b"x")
    assert (root.parent / "rooted" / "secret").read_bytes() == b"secret"


def test_file_url_with_a_host_is_refused(root: Path) -> None:
    for host in ("localhost", "example.org"):
        with pytest.raises(StorageRefused):
            read(Storage(file_roots=[root]), f"file://{host}{root}/deep/a%20b")


def test_symlinked_root_is_accepted(root: Path) -> None:
    (root.parent / "alias").symlink_to(root)
    storage = Storage(file_roots=[root.parent / "alias"])
    assert read(storage, f"file://{root.parent}/alias/deep/a%20b") == b"allowed"


def test_file_is_written_atomically(root: Path) -> None:
    storage = Storage(file_roots=[root])
    url = join(f"file://{root}/new/", "x y/z")
    write(storage, url, b"content")
    assert (root / "new" / "x y" / "z").read_bytes() == b"content"
    assert read(storage, url) == b"content"
    half = storage.write(url, io.BytesIO(b"other" * 200_000))
    next(half)
    half.close()
    assert read(storage, url) == b"content"
    assert [path.name for path in (root / "new").rglob("*") if path.is_file()] == ["z"]


@pytest.mark.parametrize("after", range(1, 5))
def test_folder_swapped_for_a_symlink_during_write_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """After any resolution of the path, what is written lies in the root, or nowhere."""
    real_path, left = os.path.realpath, [after]

    def realpath(path: Any, **options: Any) -> str:
        found = str(real_path(path, **options))
        left[0] -= 1
        if left[0] == 0:
            (root / "deep").rename(root / "moved")
            (root / "deep").symlink_to(root.parent / "rooted")
        return found

    storage = Storage(file_roots=[root])
    monkeypatch.setattr(os.path, "realpath", realpath)
    with suppress(StorageRefused):
        write(storage, f"file://{root}/deep/er/new", b"x")
    assert [path.name for path in (root.parent / "rooted").iterdir()] == ["secret"]
    assert len(list(root.rglob("new"))) == (left[0] > 0)
    assert not list(root.rglob("*.draft"))


def test_file_swapped_for_a_symlink_after_the_check_is_not_read(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, really_open = root / "deep" / "a b", os.open

    def open_late(name: Any, *rest: Any, **more: Any) -> int:
        if Path(name) == path:
            path.unlink()
            path.symlink_to(tmp_path / "rooted" / "secret")
        return really_open(name, *rest, **more)

    monkeypatch.setattr(os, "open", open_late)
    with pytest.raises(StorageRefused, match="is not below"):
        read(Storage(file_roots=[root]), f"file://{root}/deep/a%20b")


def test_write_follows_a_folder_renamed_during_the_write(root: Path) -> None:
    writing = Storage(file_roots=[root]).write(f"file://{root}/deep/new", io.BytesIO(b"content"))
    next(writing)
    (root / "deep").rename(root / "moved")
    (root / "deep").symlink_to(root.parent / "rooted")
    assert list(writing) == []
    assert (root / "moved" / "new").read_bytes() == b"content"
    assert [path.name for path in (root.parent / "rooted").iterdir()] == ["secret"]


# ----------------------------------------------------------------------------- fsspec


def test_other_file_systems_are_read_and_written_if_they_are_allowed() -> None:
    storage = Storage(file_systems=["memory"])
    write(storage, "memory://base/a", b"content")
    assert read(storage, "memory://base/a") == b"content"
    with pytest.raises(StorageRefused):
        read(storage, "memory://base/none")
    with pytest.raises(StorageRefused, match="memory"):
        read(Storage(file_systems=["s3"]), "memory://base/a")


@pytest.mark.parametrize(
    "url",
    [
        "local:///etc/passwd",
        "simplecache::file:///etc/passwd",
        "memory::file:///etc/passwd",
        "memory://x::file:///etc/passwd",
        "nonsense://x",
        "/etc/passwd",
        "",
    ],
)
def test_local_chained_and_unknown_url_schemes_are_refused(url: str) -> None:
    storage = Storage(file_systems=["memory", "local", "simplecache", "nonsense"])
    with pytest.raises(StorageRefused):
        read(storage, url)


def test_missing_file_system_package_is_named_in_the_error() -> None:
    with pytest.raises(StorageRefused, match="gcsfs"):
        read(Storage(file_systems=["gs"]), "gs://bucket/x")


# ----------------------------------------------------------------------------- web


class Names:
    """Addresses of host names at each look-up, instead of the system's resolver."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.addresses: dict[str, list[list[str]]] = {}
        self.lookups: list[str] = []
        really_find = socket.getaddrinfo

        def find(host: str, port: int, *rest: Any, **more: Any) -> list[Any]:
            if host not in self.addresses:
                return really_find(host, port, *rest, **more)
            self.lookups.append(host)
            left = self.addresses[host]
            found = left.pop(0) if len(left) > 1 else left[0]
            return [entry for one in found for entry in really_find(one, port, *rest, **more)]

        patch.setattr(socket, "getaddrinfo", find)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


def port_of(web: Web) -> str:
    return web.url.rpartition(":")[2]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "[::1]",
        "0.0.0.0",
        "[::ffff:127.0.0.1]",
        "10.0.0.5",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "[fd00::5]",
        "169.254.169.254",
        "[fd20:ce::254]",
        "[fd00:c1::a9fe:a9fe]",
        "192.0.0.192",
        "[2002:a9fe:a9fe::]",
        "224.0.0.1",
    ],
)
def test_submitter_url_to_an_address_that_is_not_public_is_not_fetched(host: str) -> None:
    with pytest.raises(StorageRefused, match=r"not fetch from .*: its address is not public") as no:
        read(Storage(), f"http://{host}:9/x")
    assert "CELLRUN_CELL_ALLOWED_NETWORKS" in str(no.value)


def test_networks_of_the_pool_hold_unless_the_cell_has_its_own(web: Web) -> None:
    web.files["/x"] = b"secret"

    def fetch(storage: Storage, *networks: str) -> bytes:
        return b"".join(storage.read(f"{web.url}/x", named=True, pool_networks=networks))

    by_pool = Storage(allowed_networks=None)
    assert fetch(by_pool, "10.0.0.0/8", "127.0.0.0/8") == b"secret"
    with pytest.raises(StorageRefused, match="input_networks of the pool do not allow it"):
        fetch(by_pool, "10.0.0.0/8")
    with pytest.raises(StorageRefused, match="does not appear to be an IPv4 or IPv6 network"):
        fetch(by_pool, "local")
    with pytest.raises(StorageRefused, match="CELLRUN_CELL_ALLOWED_NETWORKS does not allow it"):
        fetch(Storage(allowed_networks=()), "127.0.0.0/8")
    assert fetch(Storage(allowed_networks=LOCAL)) == b"secret"


def test_pool_does_not_allow_the_metadata_service_of_a_cloud() -> None:
    storage = Storage(allowed_networks=None)
    with pytest.raises(StorageRefused, match="metadata service"):
        b"".join(
            storage.read("http://169.254.169.254/x", named=True, pool_networks=["169.254.0.0/16"])
        )


def test_name_is_refused_if_one_of_its_addresses_is(web: Web, names: Names) -> None:
    web.files["/x"] = b"secret"
    names.addresses["rebound.example"] = [["93.184.216.34", "10.0.0.5"]]
    with pytest.raises(StorageRefused, match="not public but private") as no:
        read(Storage(allowed_networks=LOCAL), f"http://rebound.example:{port_of(web)}/x")
    assert "10.0.0.5" not in str(no.value), "internal DNS records are not revealed"
    names.addresses["local.example"] = [["127.0.0.1"]]
    url = f"http://local.example:{port_of(web)}/x"
    assert read(Storage(allowed_networks=LOCAL), url) == b"secret"
    assert [request.headers["Host"] for request in web.requests] == [url.split("/")[2]]


def test_name_is_not_resolved_again_after_the_check(web: Web, names: Names) -> None:
    web.files["/x"] = b"secret"
    names.addresses["rebinding.example"] = [["127.0.0.1"], ["10.0.0.5"]]
    url = f"http://rebinding.example:{port_of(web)}/x"
    assert read(Storage(allowed_networks=LOCAL), url) == b"secret"
    assert names.lookups == ["rebinding.example"]
    with pytest.raises(StorageRefused, match="private"):
        read(Storage(allowed_networks=LOCAL), url)


def test_refusal_does_not_depend_on_whether_a_port_is_open(web: Web) -> None:
    def refusal(port: str) -> str:
        with pytest.raises(StorageRefused) as no:
            read(Storage(), f"http://127.0.0.1:{port}/x")
        return str(no.value)

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert refusal(str(closed.getsockname()[1])) == refusal(port_of(web))


def test_other_addresses_are_tried_if_one_does_not_answer(web: Web, names: Names) -> None:
    web.files["/x"] = b"content"
    names.addresses["two.example"] = [["127.0.0.2", "127.0.0.1"]]
    url = f"http://two.example:{port_of(web)}/x"
    assert read(Storage(allowed_networks=LOCAL), url) == b"content"


def test_submitter_url_to_this_machine_is_not_fetched(web: Web) -> None:
    web.files["/x"] = b"secret"
    names = {
        f"http://127.0.0.1:{web.url.rpartition(':')[2]}/x",
        web.url.replace("127.0.0.1", "localhost") + "/x",
    }
    for url in names:
        with pytest.raises(StorageRefused, match="not fetch"):
            read(Storage(), url)
    assert web.requests == [], "no request was sent"
    assert read(Storage(allowed_networks=LOCAL), f"{web.url}/x") == b"secret"
    assert read(Storage(), f"{web.url}/x", named=False) == b"secret", "our own link"


def test_only_links_of_the_control_plane_are_signed(web: Web) -> None:
    """Neither a submitter's server nor the target of a redirect gets the signature of a cell."""
    storage = Storage(allowed_networks=LOCAL, sign=lambda url: {"X-Cellrun-Mac": url})
    web.files["/x"] = b"content"
    read(storage, f"{web.url}/x")
    assert "X-Cellrun-Mac" not in web.requests[-1].headers
    target = f"{web.url}/object"
    web.route = lambda request: (
        Answer(302, headers={"Location": target}) if request.path == "/link" else Answer(200)
    )
    read(storage, f"{web.url}/link", named=False)
    link, redirected = web.requests[-2:]
    assert link.headers["X-Cellrun-Mac"] == f"{web.url}/link"
    assert redirected.path == "/object"
    assert not [name for name in redirected.headers if name.lower().startswith("x-cellrun")]


def test_compressed_answer_is_read_in_bounded_pieces(web: Web) -> None:
    """The limit of inputs counts what is unpacked, and the cell holds one piece of it."""
    bomb = gzip.compress(gzip.compress(bytes(50_000_000)))
    headers = {"Content-Encoding": "gzip, gzip"}
    web.route = lambda request: Answer(200, bomb, headers=headers)
    tracemalloc.start()
    try:
        sizes = [len(piece) for piece in Storage(allowed_networks=LOCAL).read(web.url, named=True)]
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert sum(sizes) == 50_000_000
    assert max(sizes) <= PIECE_BYTES


def test_redirect_to_a_forbidden_address_is_not_followed(web: Web, names: Names) -> None:
    names.addresses["other.example"] = [["127.0.0.1"]]
    other = f"http://other.example:{port_of(web)}/x"
    web.route = lambda request: Answer(302, headers={"Location": other})
    with pytest.raises(StorageRefused, match="redirects"):
        read(Storage(allowed_networks=LOCAL), f"{web.url}/x")
    names.addresses["other.example"] = [["10.0.0.5"]]
    with pytest.raises(StorageRefused, match="not public"):
        read(Storage(allowed_networks=LOCAL), f"{web.url}/x")
    for host in ("169.254.1.1", "169.254.169.254", "10.0.0.5", "[fd00::5]"):
        web.route = lambda request, host=host: Answer(302, headers={"Location": f"http://{host}/x"})
        with pytest.raises(StorageRefused, match="not public"):
            read(Storage(allowed_networks=LOCAL), f"{web.url}/x")
    web.route = lambda request: Answer(302, headers={"Location": "file:///etc/passwd"})
    with pytest.raises(StorageRefused):
        read(Storage(allowed_networks=LOCAL), f"{web.url}/x")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_client_error_status_refuses_a_submitter_url(web: Web, status: int) -> None:
    web.route = lambda request: Answer(status)
    with pytest.raises(StorageRefused, match=str(status)):
        read(Storage(allowed_networks=LOCAL), f"{web.url}/x")
    with pytest.raises(StorageAway):
        read(Storage(), f"{web.url}/x", named=False)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_transient_http_status_counts_as_unavailable(web: Web, status: int) -> None:
    web.route = lambda request: Answer(status)
    with pytest.raises(StorageAway, match=str(status)):
        read(Storage(allowed_networks=LOCAL), f"{web.url}/x")


def test_refused_connection_counts_as_unavailable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(StorageAway):
        read(Storage(allowed_networks=LOCAL), f"http://127.0.0.1:{port}/x")


def test_proxy_environment_variables_are_ignored(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    web.files["/x"] = b"content"
    assert read(Storage(allowed_networks=LOCAL), f"{web.url}/x") == b"content"


def test_http_url_is_never_written(web: Web) -> None:
    with pytest.raises(StorageRefused):
        write(Storage(allowed_networks=LOCAL), f"{web.url}/x", b"x")


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("end", ["refused", "down", "closed", "other_scheme"])
def test_secrets_in_redirect_targets_are_absent_from_errors(
    web: Web, end: str, named: bool
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed_url = f"http://ann:hush@127.0.0.1:{free.getsockname()[1]}"
    bases = {"closed": closed_url, "other_scheme": "other://ann:hush@example.org"}

    def answer(request: Request) -> Answer:
        if request.path.startswith("/signed"):
            return Answer(404 if end == "refused" else 503)
        to = f"{bases.get(end, web.url)}/signed?X-Signature=se'cret&x=(hush)"
        return Answer(302, headers={"Location": to})

    web.route = answer
    with pytest.raises((StorageAway, StorageRefused)) as caught:
        read(Storage(allowed_networks=LOCAL), f"{web.url}/x", named=named)
    for hidden in ("cret", "Signature", "hush", "ann"):
        assert hidden not in str(caught.value)


def test_signatures_and_passwords_stay_out_of_messages() -> None:
    url = "https://ann:hush@example.org/x?token=secret"
    words = without_secrets(f"404 for {url} (hush)", url)
    assert "hush" not in words
    assert "secret" not in words
    assert "example.org/x" in words
