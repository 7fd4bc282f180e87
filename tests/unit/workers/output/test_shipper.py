"""Output arrives whole at a server that counts bytes, whatever it answers in between."""

from pathlib import Path

from tests.conformance.kit import until
from tests.harness.web import Web
from tests.unit.workers.output.upload_kit import KEY, NOW, Cell, Store
from workers.output.shipper import CHUNK_BYTES, SHIPPED, LogShipper


def test_output_is_shipped_while_it_is_written(cell: Cell, store: Store) -> None:
    cell.shipper.start()
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    until(lambda: store.logs.get("a/stdout") == b"one\n")
    cell.write("a", b"\x00\xff\n")
    cell.write("a", b"err\n", "stderr")
    until(lambda: store.logs == {"a/stdout": b"one\n\x00\xff\n", "a/stderr": b"err\n"})


def test_finish_ships_remaining_output_before_returning(cell: Cell, store: Store) -> None:
    content = b"0123456789" * (CHUNK_BYTES // 4)
    cell.shipper.watch("a", cell.write("a", content))
    cell.shipper.finish("a", 30)
    assert store.logs["a/stdout"] == content
    assert (cell.folder / "a" / SHIPPED).exists()


def test_finish_without_output_sends_no_request(cell: Cell, web: Web) -> None:
    cell.shipper.watch("a", cell.write("a", b""))
    cell.shipper.finish("a", 30)
    assert web.requests == []


def test_shipping_resumes_at_the_size_known_to_the_server(cell: Cell, store: Store) -> None:
    store.logs["a/stdout"] = b"one\n"
    cell.shipper.watch("a", cell.write("a", b"one\ntwo\n"))
    cell.shipper.finish("a", 30)
    assert store.logs["a/stdout"] == b"one\ntwo\n"


def test_output_lost_by_the_server_is_sent_again(cell: Cell, store: Store) -> None:
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.send_round()
    store.logs["a/stdout"] = b"on"
    cell.write("a", b"two\n")
    cell.shipper.finish("a", 30)
    assert store.logs["a/stdout"] == b"one\ntwo\n"


def test_shipping_stops_for_an_attempt_unknown_to_the_server(
    cell: Cell, store: Store, web: Web
) -> None:
    store.unknown.add("a")
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.send_round()
    cell.write("a", b"two\n")
    cell.shipper.finish("a", 30)
    assert len(web.requests) == 1


def test_stream_that_ended_is_not_sent_further_and_the_other_arrives(
    cell: Cell, store: Store, web: Web
) -> None:
    store.full.add("a/stdout")
    cell.write("a", b"one\n")
    cell.shipper.watch("a", cell.write("a", b"Traceback\n", "stderr"))
    cell.shipper.send_round()
    cell.write("a", b"two\n")
    cell.write("a", b"ValueError\n", "stderr")
    cell.shipper.finish("a", 30)
    assert store.logs == {"a/stdout": b"one\n", "a/stderr": b"Traceback\nValueError\n"}
    assert len(web.requests) == 3
    assert (cell.folder / "a" / SHIPPED).exists()


def test_output_unsent_at_finish_is_shipped_in_the_background(cell: Cell, store: Store) -> None:
    store.fails = 4
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.finish("a", 30)
    assert store.logs == {}
    cell.shipper.start()
    until(lambda: store.logs == {"a/stdout": b"one\n"})
    until((cell.folder / "a" / SHIPPED).exists)


def test_next_process_ships_output_left_by_the_previous_one(cell: Cell, store: Store) -> None:
    cell.write("done", b"not again\n")
    (cell.folder / "done" / SHIPPED).touch()
    cell.write("left", b"one\n")
    cell.begin().start()
    until((cell.folder / "left" / SHIPPED).exists)
    assert store.logs == {"left/stdout": b"one\n"}


def test_sweep_removes_old_output_but_not_watched_output(tmp_path: Path) -> None:
    shipper = LogShipper(
        control_url="", cell="cell-1", key=KEY, folder=tmp_path, now=lambda: NOW + 10**9
    )
    (tmp_path / "old").mkdir()
    (tmp_path / "watched").mkdir()
    shipper.watch("watched", tmp_path / "watched")
    shipper.sweep()
    shipper.close()
    assert [path.name for path in tmp_path.iterdir()] == ["watched"]
