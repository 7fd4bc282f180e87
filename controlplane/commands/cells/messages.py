"""Handle registrations, heartbeats and goodbyes of cells, and answer them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import transaction

from controlplane.commands.state.apply import apply, register_cell
from controlplane.commands.state.dispatch import report_unreadable
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.messages.orders import GroupSpec, Orders, RegistrationResult, Sync
from controlplane.contract.messages.reports import Goodbye, Register
from controlplane.contract.states import TaskState
from controlplane.domain.cells.enrolment import (
    MISMATCH,
    Claims,
    Enrolment,
    compare_claims,
    mismatch_alert,
)
from controlplane.domain.cells.health import decide_fitness, keep_for_stops
from controlplane.domain.cells.keys import CellAddress
from controlplane.domain.cells.registration import (
    ALERTS_OF_ABSENCE,
    Registration,
    RegistrationDecision,
    decide_registration,
)
from controlplane.domain.cells.sync import SyncResponse, decide_sync, find_different
from controlplane.domain.convergence.cell_health import SUSPICIONS
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.state.effects import ChangeCell, ClearAlert, Effects, RaiseAlert
from controlplane.domain.state.states import CellState
from controlplane.models import Cell
from controlplane.outbox import cells
from controlplane.queries.attempts.exec_sessions import load_exec_orders
from controlplane.queries.attempts.group_specs import GroupSpecs, load_group_specs
from controlplane.queries.cells.keys import keys_of
from controlplane.queries.cells.sync import (
    CellStatus,
    load_expected,
    load_standings,
    load_unreleased,
)
from controlplane.queries.convergence.cell_health import count_overdue_stops
from controlplane.queries.policy import load_policy
from controlplane.queries.sql import execute, rows, scalar

_LEFT = "it has left, and named no successor"


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat from a verified envelope."""

    address: CellAddress
    seq: int
    held: Mapping[str, TaskState]
    unfit: str = ""
    clock_ahead: float | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether the cell has no attempts and no complaint."""
        return not self.held and not self.unfit


def record_registration(
    address: CellAddress, register: Register, *, seq: int, is_supported: bool, now: datetime
) -> RegistrationResult | None:
    """Decide and record a registration; return the answer, which is sent after commit.

    Ignore it and return None if its key is no longer valid.
    """
    with transaction.atomic():
        cell = (
            Cell.objects.select_for_update(no_key=True, of=("self",))
            .select_related("pool")
            .get(pk=address.cell_id)
        )
        if not _has_valid_key(address, cell):
            return None
        facts = _facts(cell, register, address.incarnation, seq, now)
        decision = decide_registration(
            known_incarnation=cell.incarnation,
            known_state=CellState(cell.state),
            ordered_state=CellState(cell.ordered_state),
            known_seq=_last_seq(cell),
            incarnation=address.incarnation,
            seq=seq,
            is_supported=is_supported,
            unknown_attempts=_count_unknown_attempts(cell, address, register),
            mismatch=facts["mismatch"],
        )
        if decision.verdict is RegistrationDecision.ACCEPTED:
            _accept(cell, address, decision, facts, seq=seq, now=now)
        elif decision.verdict is RegistrationDecision.REFUSED:
            alert = RaiseAlert("cell_twin", cell.name, f"cell {cell.name}: {decision.why}")
            apply(Effects(alerts=[alert]), now=now)
            # A successor proves that the network works: the loss is not suppressed after the lease.
            statement = "UPDATE controlplane_celllease SET successor_at = %s WHERE cell_id = %s"
            execute(statement, [now, cell.pk])
        answer = RegistrationResult(
            verdict=decision.verdict,
            why=decision.why,
            server_time=now.timestamp(),
            lease_seconds=settings.CELLRUN.lease_seconds,
            heartbeat_seconds=settings.CELLRUN.heartbeat_seconds,
            register_seq=seq,
        )

        def send_answer() -> None:
            cells.send([(address, answer.body())])

        transaction.on_commit(send_answer, robust=True)
    return answer


def _accept(
    cell: Cell,
    address: CellAddress,
    decision: Registration,
    facts: dict[str, Any],
    *,
    seq: int,
    now: datetime,
) -> None:
    """Write the facts of an accepted registration, open its lease, and update alerts."""
    if decision.cause is not None:
        facts["quarantined_for"] = decision.cause.value
    # Keep the reason while the cell keeps its state.
    is_as_before = (
        decision.cause is None
        and not decision.is_held
        and decision.state == cell.state != CellState.READY
    )
    reason = cell.state_reason if is_as_before else decision.why
    renewed = cell.incarnation != address.incarnation
    if renewed:
        facts["trusted_at"] = now  # failures of its previous incarnation do not count
    register_cell(cell.pk, state=decision.state, reason=reason, facts=facts, now=now)
    _open_lease(cell.pk, address.incarnation, seq, renewed=renewed, now=now)
    is_trusted = decision.state is not CellState.QUARANTINED
    over = ALERTS_OF_ABSENCE + (SUSPICIONS if is_trusted else ())
    cleared = [ClearAlert(kind, cell.name) for kind in over]
    alerts = []
    if facts["mismatch"]:
        alerts.append(mismatch_alert(cell.name, facts["mismatch"]))
    else:
        cleared.append(ClearAlert(MISMATCH, cell.name))
    apply(Effects(alerts=alerts, cleared=cleared, frees=True), now=now)


def answer_heartbeats(beats: Sequence[Beat], *, now: datetime) -> None:
    """Renew the leases in one statement and answer each cell with its expected attempts.

    Another one reads the cells; more follow only if they have attempts. Omit unreadable runs with
    an alert; every cell gets an answer, except one whose key ended since the heartbeat was
    verified.
    """
    latest, returned = _renew_leases({beat.address: beat for beat in beats}, now)
    cell_ids = sorted({address.cell_id for address in latest})
    # Reads after the renewal: a cell whose lease had expired before is LOST in what they return.
    standings, has_attempts, has_execs = load_standings(cell_ids)
    unreleased = load_unreleased(cell_ids) if has_attempts else {}
    different = {
        uid
        for address, beat in latest.items()
        for uid in find_different(beat.held, unreleased.get(address.cell_id, {}))
    }
    expected, grown = load_expected(different) if different else ({}, {})
    # Only running attempts have sessions.
    execs = load_exec_orders(unreleased, now=now) if unreleased and has_execs else {}
    answers: dict[CellAddress, SyncResponse] = {}
    for address, beat in latest.items():
        standing = standings.get(address.cell_id)
        is_current = (
            standing is not None
            and standing.incarnation == address.incarnation
            and standing.state is not CellState.LOST
        )
        if is_current:
            answers[address] = decide_sync(
                beat.held,
                unreleased.get(address.cell_id, ()),
                expected.get(address.cell_id, ()),
                now=now,
            )
    spec_ids = {run.spec_id for answer in answers.values() for run in answer.runs}
    specs = GroupSpecs()
    if spec_ids:
        resent = [grown[spec_id] for spec_id in spec_ids & grown.keys()]
        specs = load_group_specs(spec_ids - grown.keys(), resent)
    messages: list[tuple[CellAddress, dict[str, Any]]] = []
    unsent: dict[str, str] = {}
    for address, beat in latest.items():
        if address not in answers:
            messages.append((address, _sync(beat, None, Orders(), now, draw_anew=True).body()))
            continue
        answer, standing = answers[address], standings[address.cell_id]
        try:
            bodies = _write_answer(beat, standing, answer, specs.read, now)
        except Exception as error:  # the cell must get its lease and its stops in any case
            unsent[address.name] = repr(error)
            bodies = _write_answer(beat, standing, answer, {}, now)
        messages += [(address, body) for body in bodies]
        messages += [
            (address, Orders(execs=(order,)).body()) for order in execs.get(address.cell_id, ())
        ]
    cells.send(messages)
    report_unreadable(specs.unreadable, unsent)
    _judge_fitness(
        (
            (beat, standings.get(beat.address.cell_id), unreleased.get(beat.address.cell_id, ()))
            for beat in latest.values()
        ),
        now,
    )
    if returned:
        _readmit_returned([standings[cell_id] for cell_id in returned], now)


def _write_answer(
    beat: Beat,
    standing: CellStatus,
    answer: SyncResponse,
    specs: Mapping[int, GroupSpec],
    now: datetime,
) -> list[dict[str, Any]]:
    """Return the Sync, and the orders that exceed it. Omit runs without a spec."""
    first, *more = [*cells.split_orders(answer.runs, answer.stops, specs)] or [Orders()]
    return [_sync(beat, standing, first, now).body(), *(orders.body() for orders in more)]


def _judge_fitness(
    beats: Iterable[tuple[Beat, CellStatus | None, Collection[str]]], now: datetime
) -> None:
    """Quarantine cells that report themselves unfit, and readmit those that are fit again."""
    changes: list[ChangeCell] = []
    for beat, standing, unreleased in beats:
        if standing is None or standing.incarnation != beat.address.incarnation:
            continue
        if not beat.unfit and standing.state is not CellState.QUARANTINED:
            continue  # the usual case
        change = decide_fitness(
            cell_id=standing.cell_id,
            name=beat.address.name,
            state=standing.state,
            ordered=standing.ordered_state,
            cause=standing.quarantined_for,
            until=standing.quarantined_until,
            unfit=beat.unfit,
            holds_unknown_attempts=any(uid not in unreleased for uid in beat.held),
        )
        if change is not None:
            changes.append(change)
    if not changes:
        return
    freed = {change.cell_id for change in changes if change.state is not CellState.QUARANTINED}
    overdue = count_overdue_stops(freed, now, load_policy()) if freed else {}
    changes = [
        keep_for_stops(change, overdue[change.cell_id]) if change.cell_id in overdue else change
        for change in changes
    ]
    # In a transaction after that of the leases: a registration locks the cell before its lease.
    with transaction.atomic():
        apply(Effects(cells=changes), now=now)


def _readmit_returned(standings: Sequence[CellStatus], now: datetime) -> None:
    """Give work to cells that send heartbeats after a goodbye.

    The goodbye was that of a process whose journal was restored from an older copy: the process
    after it draws the same sequence numbers, and registers before the goodbye arrives.
    """
    cordoned, reason = frozenset({CellState.CORDONED}), "it sends heartbeats after its goodbye"
    changes = []
    with transaction.atomic():
        # Lock the cells before their leases, as a registration does.
        locked = Cell.objects.select_for_update(no_key=True).order_by("pk")
        found = locked.in_bulk([standing.cell_id for standing in standings])
        for standing in standings:
            is_newest = execute(
                "UPDATE controlplane_celllease SET left_at = NULL"
                " WHERE cell_id = %s AND incarnation = %s AND heartbeat_seq = %s",
                [standing.cell_id, standing.incarnation, standing.heartbeat_seq],
            )
            cell = found[standing.cell_id]
            # A cordon for another reason stays: an order, or a wire version without support.
            is_of_goodbye = cell.ordered_state == CellState.READY and cell.state_reason == _LEFT
            if is_newest and is_of_goodbye:
                changes.append(ChangeCell(standing.cell_id, cordoned, CellState.READY, reason))
        apply(Effects(cells=changes), now=now)


def record_goodbye(address: CellAddress, goodbye: Goodbye, *, seq: int, now: datetime) -> None:
    """Record that a cell process ends; extend its lease to cover the start of its successor.

    Ignore a late or repeated goodbye, after a newer message of the cell. Lease and cell change in
    one transaction: a successor that registers in between would take no work.
    """
    run_in_transaction(partial(_record_goodbye, address, goodbye, seq, now))


def _record_goodbye(address: CellAddress, goodbye: Goodbye, seq: int, now: datetime) -> None:
    until = now + timedelta(seconds=goodbye.expected_seconds) + _lease_length()
    # Lock the cell before its lease, as a registration does.
    cell = Cell.objects.select_for_update(no_key=True).get(pk=address.cell_id)
    if not _has_valid_key(address, cell):
        return
    # A cordoned or drained cell needs no successor.
    is_for_good = not goodbye.expected_seconds or cell.ordered_state != CellState.READY
    is_current = execute(
        """
        UPDATE controlplane_celllease
        SET expires_at = GREATEST(expires_at, %(until)s), last_message_at = %(now)s,
            heartbeat_seq = %(seq)s, left_at = %(left)s
        WHERE cell_id = %(cell)s AND incarnation = %(incarnation)s AND heartbeat_seq < %(seq)s
        """,
        {
            "until": until,
            "now": now,
            "seq": seq,
            "cell": address.cell_id,
            "incarnation": address.incarnation,
            "left": now if is_for_good else None,
        },
    )
    if is_current and not goodbye.expected_seconds:
        # No successor takes work; it is LOST when its lease expires, unless one registers.
        ready = frozenset({CellState.READY})
        change = ChangeCell(address.cell_id, ready, CellState.CORDONED, _LEFT)
        apply(Effects(cells=[change]), now=now)


def _has_valid_key(address: CellAddress, cell: Cell) -> bool:
    """Return whether the key that verified a message is still valid for the (locked) cell."""
    return cell.revoked_at is None and address.key in keys_of(cell)


def _lease_length() -> timedelta:
    """Return a lease that outlasts the cell's own, to allow for clock drift and message delay."""
    return timedelta(seconds=settings.CELLRUN.lease_seconds * Policy().lease_factor)


def _facts(
    cell: Cell, register: Register, incarnation: str, seq: int, now: datetime
) -> dict[str, Any]:
    """Return the columns of a registration; what it claims is compared with the enrolment."""
    pool_id, pool = _pool_of(cell, register.pool)
    claims = Claims(register.pool, register.labels, register.capacity, register.tags)
    enrolment = Enrolment(pool, cell.node_labels, cell.max_capacity, cell.fixed_tags)
    effective = compare_claims(enrolment, claims)
    return {
        "incarnation": incarnation,
        "register_seq": seq,
        "pool_id": pool_id,
        "labels": dict(effective.labels),
        "capacity": dict(effective.capacity),
        "mismatch": effective.mismatch,
        "claims": claims.as_dict(),
        "tags": list(effective.tags),
        "drivers": list(register.drivers),
        "task_types": list(register.task_types),
        "versions": dict(register.versions),
        "registered_at": now,
    }


def _count_unknown_attempts(cell: Cell, address: CellAddress, register: Register) -> int:
    """Return how many attempts of the cell do not belong to its incarnation, or not any more."""
    if not register.inventory:
        return 0
    is_known = cell.incarnation == address.incarnation
    unreleased = load_unreleased([cell.pk]).get(cell.pk, {}) if is_known else {}
    return len({item.uid for item in register.inventory} - unreleased.keys())


def _last_seq(cell: Cell) -> int:
    """Return the highest sequence number known of the cell's current incarnation."""
    drawn = scalar(
        """
        SELECT GREATEST(heartbeat_seq, acked_seq) FROM controlplane_celllease
        WHERE cell_id = %s AND incarnation = %s
        """,
        [cell.pk, cell.incarnation],
    )
    return max(int(cell.register_seq), drawn or 0)


def _pool_of(cell: Cell, name: str) -> tuple[int, str]:
    """Return id and name of the cell's pool: `name`, if cells may join it, or that of its row."""
    pool_id = scalar("SELECT id FROM controlplane_pool WHERE name = %s AND cells_may_join", [name])
    return (cell.pool_id, cell.pool.name) if pool_id is None else (int(pool_id), name)


def _open_lease(cell_id: int, incarnation: str, seq: int, *, renewed: bool, now: datetime) -> None:
    execute(
        """
        INSERT INTO controlplane_celllease AS l
            (cell_id, incarnation, last_message_at, expires_at, silent_ticks, heartbeat_seq,
            acked_seq)
        VALUES (%(cell)s, %(incarnation)s, %(now)s, %(until)s, 0, %(seq)s, %(seq)s)
        ON CONFLICT (cell_id) DO UPDATE SET
            incarnation = EXCLUDED.incarnation,
            last_message_at = EXCLUDED.last_message_at,
            expires_at = GREATEST(l.expires_at, EXCLUDED.expires_at),
            silent_ticks = 0,
            left_at = NULL,
            successor_at = NULL,
            heartbeat_seq = CASE WHEN %(renewed)s THEN EXCLUDED.heartbeat_seq
                                 ELSE GREATEST(l.heartbeat_seq, EXCLUDED.heartbeat_seq) END,
            acked_seq = CASE WHEN %(renewed)s THEN EXCLUDED.acked_seq ELSE l.acked_seq END
        """,
        {
            "cell": cell_id,
            "incarnation": incarnation,
            "now": now,
            "until": now + _lease_length(),
            "seq": seq,
            "renewed": renewed,
        },
    )


def _renew_leases(
    latest: Mapping[CellAddress, Beat], now: datetime
) -> tuple[dict[CellAddress, Beat], list[int]]:
    """Renew the leases of the cells whose keys are still valid; return their heartbeats.

    Also return the cells whose last message before was a goodbye.
    """
    found = rows(
        """
        WITH beat AS MATERIALIZED (
            SELECT i.* FROM unnest(
                %(cells)s::bigint[], %(salts)s::text[], %(incarnations)s::text[],
                %(seqs)s::bigint[], %(clocks)s::float8[]
            ) WITH ORDINALITY AS i(cell_id, salt, incarnation, seq, clock, place)
            JOIN controlplane_cell c ON c.id = i.cell_id AND c.revoked_at IS NULL
             AND i.salt <> '' AND i.salt IN (c.key_salt, c.next_key_salt)
        ), i AS MATERIALIZED (
            SELECT l.cell_id, beat.seq, beat.clock FROM controlplane_celllease l
            JOIN beat ON l.cell_id = beat.cell_id AND l.incarnation = beat.incarnation
            ORDER BY l.cell_id FOR NO KEY UPDATE OF l
        ), renewed AS (
            UPDATE controlplane_celllease l SET
                last_message_at = GREATEST(l.last_message_at, %(now)s),
                expires_at = GREATEST(l.expires_at, %(until)s),
                silent_ticks = 0,
                heartbeat_seq = GREATEST(l.heartbeat_seq, i.seq),
                clock_ahead_seconds = COALESCE(i.clock, l.clock_ahead_seconds)
            FROM i WHERE l.cell_id = i.cell_id AND i.seq > l.heartbeat_seq
            RETURNING l.cell_id, l.left_at
        )
        SELECT beat.place, beat.cell_id, r.left_at IS NOT NULL
        FROM beat LEFT JOIN renewed r ON r.cell_id = beat.cell_id
        """,
        {
            "cells": [address.cell_id for address in latest],
            "salts": [address.salt for address in latest],
            "incarnations": [address.incarnation for address in latest],
            "seqs": [beat.seq for beat in latest.values()],
            "clocks": [beat.clock_ahead for beat in latest.values()],
            "now": now,
            "until": now + _lease_length(),
        },
    )
    places = {place for place, _, _ in found}
    valid = dict(item for place, item in enumerate(latest.items(), 1) if place in places)
    return valid, sorted({cell_id for _, cell_id, has_left in found if has_left})


def _sync(
    beat: Beat,
    standing: CellStatus | None,
    orders: Orders,
    now: datetime,
    *,
    draw_anew: bool = False,
) -> Sync:
    return Sync(
        heartbeat_seq=beat.seq,
        acked=standing.acked_seq if standing else 0,
        server_time=now.timestamp(),
        lease_seconds=settings.CELLRUN.lease_seconds,
        heartbeat_seconds=settings.CELLRUN.heartbeat_seconds,
        orders=orders,
        draw_anew=draw_anew,
    )
