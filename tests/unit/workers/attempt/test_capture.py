"""Output files go on exactly where they were, whatever moment a cell died at."""

from pathlib import Path

import pytest

from workers.attempt.capture import PART_BYTES, Capture, CaptureSuperseded, LogEntry, cut_note
from workers.drivers.docker import logs


def entry(content: bytes, at: int, stream: str = "stdout") -> LogEntry:
    return LogEntry(stream, at, content)


def frame(entry: LogEntry) -> bytes:
    """As the engine sends it."""
    seconds, nanoseconds = divmod(entry.nanoseconds, 10**9)
    assert seconds < 60
    stamp = f"1970-01-01T00:00:{seconds:02d}.{nanoseconds:09d}Z ".encode()
    size = len(stamp) + len(entry.content)
    return logs.HEADER.pack(2 if entry.stream == "stderr" else 1, size) + stamp + entry.content


def copy(capture: Capture, log: list[LogEntry], *, block: int = 1 << 20) -> None:
    """Copy the engine's log `log` as the docker driver does."""
    reader, cursors = capture.begin()
    seconds, _, nanoseconds = logs.since(cursors).partition(".")
    since = int(seconds) * 10**9 + int(nanoseconds or "0")
    sent = b"".join(frame(item) for item in log if item.nanoseconds >= since)
    blocks = [sent[at : at + block] for at in range(0, len(sent), block)]
    read = iter(blocks)
    logs.copy_entries(lambda size: next(read, b""), capture, reader, cursors, joins_lines=False)


LOG = [
    entry(b"one\n", 5),
    entry(b"err\n", 6, "stderr"),
    entry(b"part ", 10**9 + 7),
    entry(b"of a ", 10**9 + 7),
    entry(b"line\n", 10**9 + 7),
    entry(b"\x00\xff\n", 10**9 + 8),
]


@pytest.mark.parametrize("known", range(len(LOG) + 1))
@pytest.mark.parametrize("block", [1, 7, 1000])
def test_capture_resumes_after_any_log_entry(tmp_path: Path, known: int, block: int) -> None:
    copy(Capture(tmp_path, 1000), LOG[:known], block=block)
    copy(Capture(tmp_path, 1000), LOG, block=block)
    assert (tmp_path / "stdout").read_bytes() == b"one\npart of a line\n\x00\xff\n"
    assert (tmp_path / "stderr").read_bytes() == b"err\n"


# As two cores kept it: what was stamped first is logged last, and a long line ends when it ends.
OVERTAKEN = [
    entry(b"one\n", 10**9 + 1),
    entry(b"err\n", 10**9 + 3, "stderr"),
    entry(b"two\n", 10**9 + 2),
    entry(b"x" * PART_BYTES, 10**9 + 4),
    entry(b"err again\n", 50 * 10**9, "stderr"),
    entry(b"end\n", 10**9 + 4),
]


@pytest.mark.parametrize("known", range(len(OVERTAKEN) + 1))
@pytest.mark.parametrize("block", [7, 100_000])
def test_line_overtaken_by_the_other_stream_is_neither_lost_nor_repeated(
    tmp_path: Path, known: int, block: int
) -> None:
    copy(Capture(tmp_path, 100_000), OVERTAKEN[:known], block=block)
    copy(Capture(tmp_path, 100_000), OVERTAKEN, block=block)
    stdout = b"one\ntwo\n" + b"x" * PART_BYTES + b"end\n"
    assert (tmp_path / "stdout").read_bytes() == stdout
    assert (tmp_path / "stderr").read_bytes() == b"err\nerr again\n"


def test_capture_resumes_near_the_end_even_if_one_stream_was_silent(tmp_path: Path) -> None:
    capture = Capture(tmp_path, 1000)
    copy(capture, [entry(b"err\n", 1, "stderr"), entry(b"out\n", 50 * 10**9)])
    assert logs.since(capture.begin()[1]) == "48.000000000"


def test_bytes_written_without_their_cursor_are_not_repeated(tmp_path: Path) -> None:
    copy(Capture(tmp_path, 1000), LOG[:3])
    with open(tmp_path / "stdout", "ab") as file:  # died between the two writes
        file.write(b"of a ")
    copy(Capture(tmp_path, 1000), LOG)
    assert (tmp_path / "stdout").read_bytes() == b"one\npart of a line\n\x00\xff\n"


def test_stream_over_the_limit_is_truncated_once_and_the_other_continues(tmp_path: Path) -> None:
    log = [entry(b"12345\n", 1), entry(b"67890\n", 2), entry(b"more\n", 3)]
    log.append(entry(b"err\n", 4, "stderr"))
    copy(Capture(tmp_path, 8), log[:2])
    capture = Capture(tmp_path, 8)
    copy(capture, log)
    assert (tmp_path / "stdout").read_bytes() == b"12345\n67" + cut_note(8)
    assert (tmp_path / "stderr").read_bytes() == b"err\n"
    assert capture.is_full("stdout")
    assert not capture.is_full("stderr")


def test_superseded_reader_cannot_append(tmp_path: Path) -> None:
    capture = Capture(tmp_path, 1000)
    former, _ = capture.begin()
    capture.begin()
    with pytest.raises(CaptureSuperseded):
        capture.add(former, [entry(b"late\n", 1)])


@pytest.mark.parametrize(
    ("stamp", "nanoseconds"),
    [
        ("1970-01-01T00:00:01.000000002Z", 1_000_000_002),
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01T01:00:01.5+01:00", 1_500_000_000),
        ("2026-11-20T19:00:00.123456789Z", 1_795_201_200_123_456_789),
    ],
)
def test_timestamps_are_parsed_to_the_nanosecond(stamp: str, nanoseconds: int) -> None:
    assert logs.nanoseconds(stamp) == nanoseconds


def test_output_without_a_final_newline_gains_none(tmp_path: Path) -> None:
    full = PART_BYTES
    log = [entry(b"a\n", 1), entry(b"x" * full, 2), entry(b"end", 2), entry(b"abc", 3)]
    kept = Capture(tmp_path, 100_000)
    reader, cursors = kept.begin()
    sent = iter([b"".join(map(frame, log))])
    logs.copy_entries(lambda size: next(sent, b""), kept, reader, cursors, joins_lines=True)
    assert (tmp_path / "stdout").read_bytes() == b"a\n" + b"x" * full + b"end\nabc"


def test_last_part_of_a_long_line_regains_its_newline() -> None:
    full = PART_BYTES
    assert logs.with_newline(entry(b"x" * full, 1)).content == b"x" * full
    assert logs.with_newline(entry(b"end", 1)).content == b"end\n"
    assert logs.with_newline(entry(b"end\n", 1)).content == b"end\n"
