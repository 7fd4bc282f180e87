"""Output is seen while it is written: half of all lines within a second, by a follower."""

import statistics

import pytest

from tests.e2e.stack import RunningStack, wait_until
from tests.e2e.work import session_of, shell_job, wait_for_end
from workers import clock

pytestmark = [pytest.mark.serial, pytest.mark.engine, pytest.mark.soak]

LINES = 40
# The machine's seconds since boot, which the test can read as well.
SCRIPT = f"i=0; while [ $i -lt {LINES} ]; do read up idle < /proc/uptime; echo $up; i=$((i+1));"
SCRIPT += " sleep 0.37; done"
MEDIAN_SECONDS = 1.0


def test_followed_line_is_seen_within_a_second_in_the_median(stack: RunningStack) -> None:
    with session_of(stack) as session:
        job_id = session.submit(shell_job(SCRIPT))["id"]
        delays: list[float] = []
        cursor, rest = "0", b""

        def has_all() -> bool:
            nonlocal cursor, rest
            uid = next(session.tasks(job_id)).get("attempt_uid")
            if uid is None:
                return False
            piece = session.log(str(uid), "stdout", cursor)
            cursor = piece.cursor
            *lines, rest = (rest + piece.content).split(b"\n")
            delays.extend(clock.boot_seconds() - float(line) for line in lines)
            return len(delays) >= LINES

        wait_until(has_all, seconds=120, what="every line was seen")
        assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
    median = statistics.median(delays)
    print(f"seen after {median:.2f} s in the median, {max(delays):.2f} s at most")
    assert median < MEDIAN_SECONDS
