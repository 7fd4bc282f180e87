"""Containers whose registry is slow or away: three cells of a container engine."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.conformance.cable import Cable
from tests.conformance.distribution import Distribution, serving
from tests.e2e.engine import remove_containers
from tests.e2e.entries.live import LiveStack
from tests.e2e.entries.scenes import Cast, Sight, Steps, alert, reason

NAMES = ("image-1", "image-2", "image-3")
NOISE = 2_000_000
SLOW = 50_000.0  # bytes a second
AT_ONCE = float("inf")

cast = Cast()


@contextmanager
def registry_at_a_cable(folder: Path) -> Iterator[tuple[Distribution, Cable]]:
    """Run a registry, and a line to it that can be cut and made slow."""
    with serving(folder) as registry, ExitStack() as ends:
        line = Cable(("127.0.0.1", 0), ("127.0.0.1", registry.port))
        ends.callback(line.close)
        ends.callback(line.throttle, AT_ONCE)
        yield registry, line


@cast.scene(
    reason("build_slots_full"),
    reason("backing_off", 1),
    alert("image_not_pulled"),
    own=dict.fromkeys(NAMES, "images"),
    needs_engine=True,
)
def cannot_pull_an_image(it: LiveStack) -> Steps:
    for name in NAMES:
        it.start_cell(name, driver="docker")
    it.cleanup.callback(remove_containers, it.stack.installation)
    with registry_at_a_cable(it.stack.home / "registry") as (registry, line):
        slow, away = (registry.seen_through(line.port, registry.push(n)) for n in (NOISE, 0))
        for name in NAMES:
            yield it.cell_is(name, "READY")
        it.session.put_pool("images", {"max_building_per_cell": 1})
        line.throttle(SLOW)
        job = it.submit("images", "/nothing", image=slow, replicas=4)
        yield it.waits(job, "build_slots_full")
        it.run("pools", "images", "--set", "max_building_per_cell=8")
        yield Sight(
            "all its tasks are prepared",
            lambda: not it.tasks(job, "PENDING"),
        )
        it.session.cancel_job(job)
        line.throttle(AT_ONCE)
        yield it.ends(job, "KILLED")
        line.pull()
        job = it.submit("images", "true", image=away, replicas=3, retries={"system": 10})
        yield it.waits(job, "backing_off", 1)
        yield it.shows("image_not_pulled", away)
        line.plug()
        yield it.ends(job)
        yield it.closed("image_not_pulled", away)
