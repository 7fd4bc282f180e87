"""Alerts about what is tried again and again close once it has not gone wrong for a while."""

from collections.abc import Mapping

from controlplane.commands.convergence.rule import RuleContext
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.queries.convergence.alerts import QUIET_ALERTS
from controlplane.queries.convergence.parameters import parameters_of
from controlplane.queries.sql import execute


def close_quiet(look: RuleContext) -> Mapping[str, int]:
    """Close those that were not raised again for as long as `domain.alerts` says."""
    # Looked at again under its lock: one that is raised meanwhile stays.
    statement = f"""
        WITH quiet AS MATERIALIZED (
            SELECT a.id {QUIET_ALERTS} ORDER BY a.id FOR NO KEY UPDATE OF a
        )
        UPDATE controlplane_alert a SET cleared_at = %(now)s FROM quiet WHERE a.id = quiet.id
        """
    parameters = parameters_of(look.now, look.covered_at, look.policy)
    return {"alerts_closed": run_in_transaction(lambda: execute(statement, parameters))}
