"""Addresses that people name lead where they may, and nowhere else."""

import io
import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.harness.web import Answer, Request, Web
from workers.remote_files import (
    Storage,
    StorageAway,
    StorageRefused,
    is_reachable,
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


def test_without_roots_no_file_is(root: Path) -> None:
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
def test_no_path_leads_out_of_the_roots(root: Path, path: str) -> None:
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


def test_a_host_in_a_file_s_address_is_refused(root: Path) -> None:
    for host in ("localhost", "example.org"):
        with pytest.raises(StorageRefused):
            read(Storage(file_roots=[root]), f"file://{host}{root}/deep/a%20b")


def test_a_root_that_is_a_link_itself_is_one(root: Path) -> None:
    (root.parent / "alias").symlink_to(root)
    storage = Storage(file_roots=[root.parent / "alias"])
    assert read(storage, f"file://{root.parent}/alias/deep/a%20b") == b"allowed"


def test_a_file_appears_whole_or_not_at_all(root: Path) -> None:
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


@pytest.mark.parametrize("looks", range(1, 5))
def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """After any of the looks where a path leads: what is written lies in the root, or nowhere."""
    real_path, left = os.path.realpath, [looks]

    def look(path: Any, **options: Any) -> str:
        found = str(real_path(path, **options))
        left[0] -= 1
        if left[0] == 0:
            (root / "deep").rename(root / "moved")
            (root / "deep").symlink_to(root.parent / "rooted")
        return found

    storage = Storage(file_roots=[root])
    monkeypatch.setattr(os.path, "realpath", look)
    with suppress(StorageRefused):
        write(storage, f"file://{root}/deep/er/new", b"x")
    assert [path.name for path in (root.parent / "rooted").iterdir()] == ["secret"]
    assert len(list(root.rglob("new"))) == (left[0] > 0)
    assert not list(root.rglob("*.draft"))


def test_a_file_that_becomes_a_link_after_it_was_checked_is_not_read(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, really_open = root / "deep" / "a b", os.open

    def open_late(name: Any, *rest: Any, **more: Any) -> int:
        if Path(name) == path:
            path.unlink()
            path.symlink_to(tmp_path / "rooted" / "secret")
        return really_open(name, *rest, **more)

    monkeypatch.setattr(os, "open", open_late)
    with pytest.raises(StorageRefused, match="does not lie below"):
        read(Storage(file_roots=[root]), f"file://{root}/deep/a%20b")


def test_a_folder_that_is_moved_meanwhile_takes_what_is_written_with_it(root: Path) -> None:
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
def test_nothing_but_what_is_allowed_is_opened(url: str) -> None:
    storage = Storage(file_systems=["memory", "local", "simplecache", "nonsense"])
    with pytest.raises(StorageRefused):
        read(storage, url)


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(StorageRefused, match="gcsfs"):
        read(Storage(file_systems=["gs"]), "gs://bucket/x")


# ----------------------------------------------------------------------------- web


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "::1",
        "0.0.0.0",
        "::",
        "169.254.169.254",
        "fe80::1%eth0",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "100.100.100.200",
        "168.63.129.16",
        "fd00:ec2::254",
        "224.0.0.1",
        "240.0.0.1",
    ],
)
def test_addresses_of_the_machine_itself_are_not_reached(address: str) -> None:
    assert not is_reachable(address, ())
    everything = [ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")]
    assert is_reachable(address, everything)


@pytest.mark.parametrize("address", ["10.1.2.3", "192.168.1.1", "93.184.216.34", "2001:db9::1"])
def test_others_are(address: str) -> None:
    assert is_reachable(address, ())


def test_what_a_submitter_names_is_not_fetched_from_this_machine(web: Web) -> None:
    web.files["/x"] = b"secret"
    names = {
        f"http://127.0.0.1:{web.url.rpartition(':')[2]}/x",
        web.url.replace("127.0.0.1", "localhost") + "/x",
    }
    for url in names:
        with pytest.raises(StorageRefused, match="not fetch"):
            read(Storage(), url)
    assert web.requests == [], "not a word was said"
    assert read(Storage(allowed_networks=LOCAL), f"{web.url}/x") == b"secret"
    assert read(Storage(), f"{web.url}/x", named=False) == b"secret", "our own link"


def test_no_redirect_leads_there_either(web: Web) -> None:
    def redirect(request: Request) -> Answer:
        other = f"http://localhost:{web.url.rpartition(':')[2]}/secret"
        return Answer(302, headers={"Location": other})

    web.route = redirect
    host = socket.gethostbyname("localhost")
    only = (ipaddress.ip_network("127.0.0.1/32"),) if host != "127.0.0.1" else LOCAL
    with pytest.raises(StorageRefused, match="redirects"):
        read(Storage(allowed_networks=only), f"{web.url}/x")
    web.route = lambda request: Answer(302, headers={"Location": "http://169.254.1.1:1/x"})
    with pytest.raises((StorageRefused, StorageAway)):
        read(Storage(allowed_networks=LOCAL), f"{web.url}/x")
    web.route = lambda request: Answer(302, headers={"Location": "file:///etc/passwd"})
    with pytest.raises(StorageRefused):
        read(Storage(allowed_networks=LOCAL), f"{web.url}/x")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_what_is_not_there_is_the_submitters_matter(web: Web, status: int) -> None:
    web.route = lambda request: Answer(status)
    with pytest.raises(StorageRefused, match=str(status)):
        read(Storage(allowed_networks=LOCAL), f"{web.url}/x")
    with pytest.raises(StorageAway):
        read(Storage(), f"{web.url}/x", named=False)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_what_may_come_later_is_not(web: Web, status: int) -> None:
    web.route = lambda request: Answer(status)
    with pytest.raises(StorageAway, match=str(status)):
        read(Storage(allowed_networks=LOCAL), f"{web.url}/x")


def test_nobody_there_may_be_there_later() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(StorageAway):
        read(Storage(allowed_networks=LOCAL), f"http://127.0.0.1:{port}/x")


def test_a_proxy_in_the_environment_is_not_asked(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    web.files["/x"] = b"content"
    assert read(Storage(allowed_networks=LOCAL), f"{web.url}/x") == b"content"


def test_nothing_is_written_to_the_web(web: Web) -> None:
    with pytest.raises(StorageRefused):
        write(Storage(allowed_networks=LOCAL), f"{web.url}/x", b"x")


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("end", ["refused", "down", "nobody", "strange"])
def test_nor_does_that_of_where_it_led(web: Web, end: str, named: bool) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://ann:hush@127.0.0.1:{free.getsockname()[1]}"
    bases = {"nobody": nobody, "strange": "strange://ann:hush@example.org"}

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
