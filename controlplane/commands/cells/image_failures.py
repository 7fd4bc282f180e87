"""Images that cannot be pulled are noted and hold up their tasks, until one of them runs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial

from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.states import TaskState as S
from controlplane.domain.cells.image_backoff import (
    FIRST_HOLD,
    FORGOTTEN_AFTER,
    PullFailures,
    held_until,
)
from controlplane.domain.state.effects import ClearAlert, Effects, RaiseAlert
from controlplane.models import ImageFailure
from controlplane.queries.sql import execute, rows

ALERT = "image_not_pulled"
# Tasks held by one statement; the next tick continues.
TASKS_PER_TICK = 10_000


def note_image_failures(failed: Iterable[tuple[int, int]], *, now: datetime) -> None:
    """Each (group, cell): that cell could not pull the image of that group."""
    pairs = sorted(set(failed))
    if not pairs:
        return
    before = now - FIRST_HOLD
    execute(
        """
        INSERT INTO controlplane_imagefailure (image, cell_id, failures, failed_at)
        SELECT g.launch ->> 'image', i.cell_id, 1, %s
        FROM unnest(%s::bigint[], %s::bigint[]) AS i(group_id, cell_id)
        JOIN controlplane_taskgroup g ON g.id = i.group_id
        WHERE g.launch ->> 'image' IS NOT NULL
        GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT (image, cell_id) DO UPDATE SET
            -- Tasks that fail in the same outage count as one failure.
            failures = controlplane_imagefailure.failures
              + (controlplane_imagefailure.failed_at <= %s)::integer,
            failed_at = GREATEST(controlplane_imagefailure.failed_at, excluded.failed_at)
        """,
        [now, [group_id for group_id, _ in pairs], [cell_id for _, cell_id in pairs], before],
    )


def hold_images(*, now: datetime) -> int:
    """Hold up the tasks of images that fail everywhere, and let go those that do not; how many."""
    run_in_transaction(lambda: _forget(now))
    found: dict[str, list[PullFailures]] = defaultdict(list)
    for image, cell_id, count, failed_at in ImageFailure.objects.order_by(
        "image", "cell_id"
    ).values_list("image", "cell_id", "failures", "failed_at"):
        found[image].append(PullFailures(cell_id, count, failed_at))
    until = {image: held_until(failures, now=now) for image, failures in found.items()}
    waiting = _find_waiting([image for image, instant in until.items() if instant is not None])

    def hold(image: str) -> int:
        return _hold(image, len(found[image]), until[image], waiting[image], now=now)

    # One transaction per image: reports of failed pulls wait for its rows.
    return sum(run_in_transaction(partial(hold, image)) for image in found)


def _find_waiting(images: Sequence[str]) -> dict[str, list[int]]:
    """Return the groups with pending tasks, by image, from one read of the open jobs."""
    groups: dict[str, list[int]] = defaultdict(list)
    if images:
        for group_id, image in rows(
            f"""
            SELECT g.id, g.launch ->> 'image' FROM controlplane_job j
            JOIN controlplane_taskgroup g ON g.job_id = j.id AND g.counts[{S.PENDING + 1}] > 0
            WHERE j.finished_at IS NULL AND g.launch ->> 'image' = ANY(%s::text[]) ORDER BY g.id
            """,
            [list(images)],
        ):
            groups[image].append(group_id)
    return groups


def _hold(
    image: str, cells: int, until: datetime | None, group_ids: Sequence[int], *, now: datetime
) -> int:
    known = ImageFailure.objects.filter(image=image).order_by("cell_id")
    # In the order in which reports lock them.
    stale = [row.pk for row in known.select_for_update(no_key=True) if row.held_until != until]
    ImageFailure.objects.filter(pk__in=stale).update(held_until=until)
    if until is None:
        apply(Effects(cleared=[ClearAlert(ALERT, image[:255])]), now=now)
        return 0
    text = f"{image} could not be pulled on {cells} cells; held until {until}"
    apply(Effects(alerts=[RaiseAlert(ALERT, image[:255], text)]), now=now)
    return _hold_tasks(group_ids, until) if group_ids else 0


def _hold_tasks(group_ids: Sequence[int], until: datetime) -> int:
    """Skip rows that another transaction has locked: the next tick handles them."""
    return execute(
        f"""
        WITH waiting AS MATERIALIZED (
            SELECT t.id FROM controlplane_task t
            WHERE t.state = {S.PENDING:d} AND NOT t.attempt_open
              AND (t.not_before IS NULL OR t.not_before < %s)
              AND t.group_id = ANY(%s::bigint[])
            ORDER BY t.id LIMIT %s FOR NO KEY UPDATE OF t SKIP LOCKED
        )
        UPDATE controlplane_task t SET not_before = %s FROM waiting WHERE t.id = waiting.id
        """,
        [until, list(group_ids), TASKS_PER_TICK, until],
    )


def _forget(now: datetime) -> None:
    """Forget images that failed long ago, or run by now."""
    forgotten = rows(
        """
        DELETE FROM controlplane_imagefailure f
        WHERE f.failed_at < %s OR EXISTS (
            SELECT FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
            WHERE a.released_at IS NULL AND a.started_at > (
                SELECT max(o.failed_at) FROM controlplane_imagefailure o WHERE o.image = f.image)
              AND g.launch ->> 'image' = f.image)
        RETURNING image, held_until
        """,
        [now - FORGOTTEN_AFTER],
    )
    freed = {image: until for image, until in forgotten if until is not None and until > now}
    for image, until in sorted(freed.items()):
        _let_go(image, until)
    cleared = [ClearAlert(ALERT, image[:255]) for image, _ in forgotten]
    apply(Effects(cleared=cleared, frees=bool(freed)), now=now)


def _let_go(image: str, until: datetime) -> None:
    execute(
        f"""
        WITH held AS MATERIALIZED (
            SELECT t.id FROM controlplane_task t
            JOIN controlplane_taskgroup g ON g.id = t.group_id
            WHERE t.state = {S.PENDING:d} AND t.not_before = %s AND g.launch ->> 'image' = %s
            ORDER BY t.id FOR NO KEY UPDATE OF t SKIP LOCKED
        )
        UPDATE controlplane_task t SET not_before = NULL FROM held WHERE t.id = held.id
        """,
        [until, image],
    )
