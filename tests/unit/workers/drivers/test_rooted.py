"""Files of a task without a container: copied, or bound by a link, below its folder."""

from pathlib import Path

from workers.attempt.runtime import PlacedFile
from workers.drivers.paths import place_below, read_head_below


def test_copied_file_is_independent_and_bound_file_follows_its_source(tmp_path: Path) -> None:
    source, root = tmp_path / "source", tmp_path / "root"
    source.write_text("one")
    for _ in range(2):  # a successor of a killed cell places again
        place_below(
            root, [PlacedFile("/in/copy", source), PlacedFile("/in/bound", source, bound=True)]
        )
    source.write_text("two")
    assert (root / "in" / "copy").read_text() == "one"
    assert (root / "in" / "bound").read_text() == "two"


def test_bound_folder_shows_later_files_and_writable_folder_is_created(tmp_path: Path) -> None:
    source, root = tmp_path / "source", tmp_path / "root"
    source.mkdir()
    place_below(
        root, [PlacedFile("/run/cellrun", source, bound=True), PlacedFile("/out", writable=True)]
    )
    (source / "hosts").write_text("127.0.0.1 main-0")
    assert (root / "run" / "cellrun" / "hosts").read_text() == "127.0.0.1 main-0"
    assert (root / "out").is_dir()


def test_copy_replaces_a_symlink_and_not_its_target(tmp_path: Path) -> None:
    first, second, root = tmp_path / "first", tmp_path / "second", tmp_path / "root"
    first.write_text("first")
    second.write_text("second")
    place_below(root, [PlacedFile("/in", first, bound=True)])
    place_below(root, [PlacedFile("/in", second)])
    assert (first.read_text(), (root / "in").read_text()) == ("first", "second")


def test_result_behind_a_folder_symlink_leading_outside_is_not_read(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    (root / "inner" / "result").write_text("mine")
    (tmp_path / "result").write_text("of another")
    (root / "out").symlink_to(tmp_path)
    (root / "in").symlink_to("inner")
    assert read_head_below(root, "/out/result", 4) is None
    assert read_head_below(root, "/in/result", 4) == b"mine"
    assert read_head_below(root, "/inner", 4) is None


def test_result_head_is_read_without_following_symlinks(tmp_path: Path) -> None:
    (tmp_path / "result").write_text("0123456789")
    (tmp_path / "link").symlink_to(tmp_path / "result")
    assert read_head_below(tmp_path, "/result", 4) == b"0123"
    assert read_head_below(tmp_path, "/link", 4) is None
    assert read_head_below(tmp_path, "/none", 4) is None
