"""Alerts about cells: they are killed, doubled, misconfigured, and in the hands of an attacker."""

import signal
import threading
from contextlib import ExitStack, suppress

import redis

from controlplane.contract.messages.reports import Heartbeat
from controlplane.contract.wire import broker, envelope, keys, logins, queues
from tests.e2e.entries.live import LiveStack
from tests.e2e.entries.scenes import Cast, Sight, Steps, alert
from tests.e2e.entries.waiting_scenes import LONG

cast = Cast()

users = Cast()
"""The control plane may not change the logins of cells."""


@cast.scene(alert("cell_lost", 0), alert("exclusive_held"), own={"lost-1": "lost"})
def loses_a_cell_with_an_exclusive_task(it: LiveStack) -> Steps:
    it.start_cell("lost-1")
    yield it.cell_is("lost-1", "READY")
    job = it.submit("lost", LONG, exclusive="strict")
    yield it.runs(job)
    it.end_cell("lost-1", signal.SIGKILL)
    yield it.shows("cell_lost", "lost-1")
    [task] = it.session.tasks(job)
    attempt = max(it.session.attempts(task["id"]), key=lambda found: found["number"])
    yield it.shows("exclusive_held", f"attempt {attempt['uid']}")
    it.run("release-attempt", attempt["uid"], "--reason", "its container is gone")
    yield it.closed("exclusive_held", f"attempt {attempt['uid']}")
    it.session.cancel_job(job)  # a further attempt would be held, too, if load delays the cell
    it.start_cell("lost-1")
    yield it.closed("cell_lost", "lost-1")
    yield it.ends(it.submit("lost"))


@cast.scene(alert("cell_twin"), own={"replaced-1": "replaced"})
def starts_a_second_process_of_a_cell(it: LiveStack) -> Steps:
    """It has the key of the cell and another journal; the first process is ended."""
    it.start_cell("replaced-1")
    yield it.cell_is("replaced-1", "READY")
    it.start_cell("replaced-1", process="second")
    yield it.shows("cell_twin", "replaced-1")
    it.end_cell("replaced-1", signal.SIGKILL)
    yield it.closed("cell_twin", "replaced-1")
    yield it.closed("cell_lost", "replaced-1")
    yield it.cell_is("replaced-1", "READY")


@cast.scene(
    alert("mass_loss", 0), steady=["switch"], own={f"mass-00{n}": "switch" for n in range(3)}
)
def loses_most_of_a_pool(it: LiveStack) -> Steps:
    yield from silence(it, "mass", "switch")
    yield it.shows("mass_loss", "switch", 0)
    it.session.confirm_loss("switch")
    yield from return_to(it, "mass", "switch")


@cast.scene(
    alert("mass_loss", 1), steady=["proceed"], own={f"swift-00{n}": "proceed" for n in range(3)}
)
def loses_most_of_a_pool_that_proceeds(it: LiveStack) -> Steps:
    it.session.put_pool("proceed", {"mass_loss": "proceed"})
    yield from silence(it, "swift", "proceed")
    yield it.shows("mass_loss", "proceed", 1)
    yield from return_to(it, "swift", "proceed")


def silence(it: LiveStack, fleet: str, pool: str) -> Steps:
    """Start three cells in a pool that has one, and stop them at once by a signal."""
    it.start_fleet(fleet, 3)
    yield it.cell_is(it.cell_in(pool), "READY")
    for number in range(3):
        yield it.cell_is(f"{fleet}-00{number}", "READY")
    it.signal_cell(fleet, signal.SIGSTOP)


def return_to(it: LiveStack, fleet: str, pool: str) -> Steps:
    """Wait until the cells are lost, and let them continue."""
    for number in range(3):
        yield it.cell_is(f"{fleet}-00{number}", "LOST")
    yield it.closed("mass_loss", pool)
    it.signal_cell(fleet, signal.SIGCONT)
    for number in range(3):
        yield it.cell_is(f"{fleet}-00{number}", "READY")
        yield it.closed("cell_lost", f"{fleet}-00{number}")


@cast.scene(alert("cell_mismatch"), own={"odd-1": "odd"})
def differs_from_its_enrolment(it: LiveStack) -> Steps:
    it.start_cell("odd-1", CELLRUN_CELL_POOL="bare")
    yield it.shows("cell_mismatch", "odd-1")
    it.end_cell("odd-1", signal.SIGTERM)
    it.start_cell("odd-1", CELLRUN_CELL_POOL="odd")
    yield it.closed("cell_mismatch", "odd-1")
    yield it.cell_is("odd-1", "READY")


@cast.scene(alert("registration_failed"), own={"unstorable-1": "unstorable"})
def cannot_be_registered(it: LiveStack) -> Steps:
    with it.refusing("refuse_cell", "UPDATE", "cell", "NEW.name = 'unstorable-1'"):
        it.start_cell("unstorable-1")
        yield it.shows("registration_failed", "unstorable-1")
    yield it.cell_is("unstorable-1", "READY")
    yield it.closed("registration_failed", "unstorable-1")


@users.scene(alert("rotation_failed"), own={"rotating-1": "rotating"})
def cannot_end_the_former_key(it: LiveStack) -> Steps:
    """The control plane may not change logins at Redis. A cell that runs processes rereads its key.

    The guard of the inbox cannot limit cells in that time.
    """
    it.start_cell("rotating-1", driver="process")
    yield it.cell_is("rotating-1", "READY")
    following = it.manage("enroll_cell", "rotating-1", "--rotate")
    with it.operator_of_redis() as operator:
        operator.execute_command("ACL", "SETUSER", "control", "-acl")
        try:
            it.key_file("rotating-1").write_text(following)
            yield it.shows("rotation_failed", "rotating-1")
        finally:
            operator.execute_command("ACL", "SETUSER", "control", "+@all")
    yield Sight(
        "the former key has ended",
        lambda: (
            not it.sql(
                "SELECT FROM controlplane_cell WHERE name = 'rotating-1' AND next_key_salt <> ''"
            )
        ),
    )
    yield it.closed("rotation_failed", "rotating-1")


@cast.scene(alert("cell_flooding", 0), steady=["flood"])
def floods_the_inbox(it: LiveStack) -> Steps:
    """A second process with the key of the cell repeats an old heartbeat."""
    cell = it.cell_in("flood")
    yield it.cell_is(cell, "READY")
    key = keys.decode_key(it.key_file(cell).read_text().strip())
    text = envelope.seal(
        keys.mac_key(key, keys.TO_CONTROL),
        cell=cell,
        incarnation=str(it.session.cell(cell)["incarnation"]),
        seq=0,
        body=Heartbeat(()).body(),
    )
    shard = queues.inbox_queue(cell)
    message = broker.plain_message(shard, text)
    is_over = threading.Event()
    with it.redis_as(logins.sender(cell), key) as sender:

        def flood() -> None:
            while not is_over.wait(1.0):
                with suppress(redis.RedisError):  # its login may be closed for a time
                    sender.lpush(shard, *[message] * 400)

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            yield it.shows("cell_flooding", cell, 0)
        finally:
            is_over.set()
            thread.join()
    yield it.cell_is(cell, "READY")
    yield it.closed("cell_flooding", cell)


@cast.scene(alert("cell_flooding", 1), steady=["crowd"])
def opens_many_connections(it: LiveStack) -> Steps:
    """A second process with the key of the cell opens connections to Redis."""
    cell = it.cell_in("crowd")
    yield it.cell_is(cell, "READY")
    key = keys.decode_key(it.key_file(cell).read_text().strip())
    shown = it.shows("cell_flooding", cell, 1)
    with ExitStack() as sockets:

        def connects_and_shows() -> bool:
            with suppress(redis.RedisError):
                for _ in range(40):
                    client = sockets.enter_context(it.redis_as(logins.receiver(cell), key))
                    client.ping()
            return shown.holds()

        yield Sight(shown.what, connects_and_shows)
    yield it.cell_is(cell, "READY")
    yield it.closed("cell_flooding", cell)


@cast.scene(alert("cell_failing"), steady=["failing"])
def fails_whatever_it_starts(it: LiveStack) -> Steps:
    cell = it.cell_in("failing")
    yield it.cell_is(cell, "READY")
    for image in ("a", "b", "c"):
        it.submit("failing", "fail-system", image=image, replicas=4, retries={"system": 0})
    yield it.shows("cell_failing", cell)
    it.session.unquarantine(cell)
    yield it.closed("cell_failing", cell)
    yield it.ends(it.submit("failing"))
