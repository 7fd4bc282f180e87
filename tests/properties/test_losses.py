"""At most half of a pool is lost in one tick, except after one more lease or a confirmation."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.convergence.lost_cells import decide_lost
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.state.facts import LeaseFacts, PoolSilence
from controlplane.domain.state.states import CellState, MassLoss
from tests.harness.domain.facts import NOW

POLICY = Policy()
SECONDS = st.integers(-7200, 7200).map(lambda n: timedelta(seconds=n))


@st.composite
def cells(draw: st.DrawFn, pool_id: int) -> list[LeaseFacts]:
    """Draw cells of a pool that reported at any time, in any state but LOST."""
    return [
        LeaseFacts(
            cell_id=100 * pool_id + number,
            name=f"cell-{number}",
            state=draw(st.sampled_from(sorted(set(CellState) - {CellState.LOST}))),
            incarnation="one",
            last_message_at=NOW + draw(SECONDS),
            expires_at=NOW + draw(SECONDS),
            silent_ticks=draw(st.integers(0, 5)),
            pool_id=pool_id,
            has_left=draw(st.booleans()),
            is_replaced=draw(st.booleans()),
        )
        for number in range(draw(st.integers(0, 9)))
    ]


def counts(lease: LeaseFacts) -> bool:
    return lease.state is not CellState.DRAINING and not lease.has_left


def silence(leases: list[LeaseFacts], pool: PoolSilence) -> PoolSilence:
    """As the query counts."""
    at = pool.confirmed_at
    is_given_up = {
        lease.cell_id: lease.silent_ticks > 0
        and (lease.is_replaced or (at is not None and lease.last_message_at < at <= NOW))
        for lease in leases
    }
    counted = [lease for lease in leases if counts(lease) and not is_given_up[lease.cell_id]]
    silent = [lease for lease in counted if lease.silent_ticks > 0]
    return replace(pool, cells=len(counted), silent=len(silent))


@given(st.data())
def test_at_most_half_of_a_pool_is_lost_in_one_tick(data: st.DataObject) -> None:
    pools, leases = [], []
    for pool_id in (1, 2):
        drawn = data.draw(cells(pool_id))
        pool = PoolSilence(
            pool_id,
            f"pool-{pool_id}",
            data.draw(st.sampled_from(MassLoss)),
            data.draw(st.none() | SECONDS.map(lambda at: NOW + at)),
            data.draw(st.none() | SECONDS.map(lambda at: NOW + at)),
            cells=0,
            silent=0,
        )
        pools.append(silence(drawn, pool))
        leases += drawn
    losses = decide_lost(leases, pools, now=NOW, policy=POLICY)
    held = {change.pool_id for change in losses.pools if change.held_at is not None}
    lost = {change.cell_id for change in losses.cells}
    more = timedelta(seconds=POLICY.lease)
    for pool in pools:
        own = [lease for lease in leases if lease.pool_id == pool.pool_id]
        gone = [lease for lease in own if lease.cell_id in lost and counts(lease)]
        gone = [lease for lease in gone if not lease.is_replaced]
        if pool.confirmed_at is not None and pool.confirmed_at <= NOW:
            gone = [lease for lease in gone if lease.last_message_at >= pool.confirmed_at]
        if len(gone) >= 3 and 2 * len(gone) > pool.cells:
            assert pool.mass_loss is MassLoss.PROCEED
            assert pool.held_at is not None
            assert pool.held_at + more <= NOW
            assert all(lease.expires_at + more <= NOW for lease in gone)
        # A cell that reports, or whose lease is not over, is never lost.
        assert all(lease.expires_at <= NOW and lease.silent_ticks >= 3 for lease in gone)
        # Either way no silent cell is ignored: it is lost, held back, or has a lease more.
        over = [x for x in own if x.expires_at <= NOW and x.silent_ticks >= 3]
        is_seen = pool.held_at is not None or pool.pool_id in held
        assert is_seen or all(lease.cell_id in lost for lease in over)
