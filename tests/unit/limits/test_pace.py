"""The bytes per second of a stream."""

from controlplane.limits.pace import Pace


def test_stream_waits_for_what_it_has_taken_beyond_the_burst() -> None:
    now = [0.0]
    pace = Pace(per_second=100, burst=50, now=lambda: now[0])
    assert pace.take(50) == 0
    assert pace.take(100) == 1.0
    now[0] = 1.0
    assert pace.take(10) == 0.1
    now[0] = 100.0
    assert pace.take(50) == 0
    assert pace.take(1) == 0.01
