"""Call the API about cells, pools, quotas and usage."""

from collections.abc import Mapping
from typing import Any

from cellrun.api.paths import path_to
from cellrun.api.transport import ApiTransport
from cellrun.documents import Alert, Cell, Pool, Quota, UsageRow

DRAIN_SECONDS = 3600.0


class CellCalls(ApiTransport):
    """The calls about cells. Every method may raise Unreachable or ApiError."""

    def cells(self) -> list[Cell]:
        """Return all cells."""
        return list(self._pages("/cells"))

    def cell(self, name: str) -> Cell:
        """Return one cell."""
        return self._call("GET", path_to("cells", name))

    def drain(
        self, name: str, *, deadline_seconds: float | None = DRAIN_SECONDS, reason: str = ""
    ) -> Cell:
        """Drain a cell (operators). `deadline_seconds`: until attempts are stopped; None: never."""
        body = {"deadline_seconds": deadline_seconds, "reason": reason}
        return self._call("POST", path_to("cells", name, "drain"), body=body)

    def cordon(self, name: str, *, reason: str = "") -> Cell:
        """Stop placement on a cell (operators)."""
        return self._order_cell(name, "cordon", reason)

    def uncordon(self, name: str, *, reason: str = "") -> Cell:
        """Resume placement on a cell (operators)."""
        return self._order_cell(name, "uncordon", reason)

    def unquarantine(self, name: str, *, reason: str = "") -> Cell:
        """Lift the quarantine of a cell (operators)."""
        return self._order_cell(name, "unquarantine", reason)

    def _order_cell(self, name: str, order: str, reason: str) -> Cell:
        return self._call("POST", path_to("cells", name, order), body={"reason": reason})


class PoolCalls(ApiTransport):
    """The calls about pools, quotas and usage. Every method may raise Unreachable or ApiError."""

    def pools(self) -> list[Pool]:
        """Return all pools."""
        return list(self._pages("/pools"))

    def pool(self, name: str) -> Pool:
        """Return one pool."""
        return self._call("GET", path_to("pools", name))

    def put_pool(self, name: str, changes: Mapping[str, Any]) -> Pool:
        """Create or change a pool; omitted fields keep their values (operators)."""
        return self._call("PUT", path_to("pools", name), body=changes)

    def confirm_loss(self, pool: str) -> Pool:
        """Confirm the suppressed loss of a pool's silent cells (operators)."""
        return self._call("POST", path_to("pools", pool, "confirm-loss"))

    def quotas(self, *, kind: str | None = None) -> list[Quota]:
        """Return the quotas with usage. `kind`: only those of user, project or domain."""
        return list(self._pages("/quotas", {"kind": kind}))

    def quota(self, kind: str, name: str) -> Quota:
        """Return limits and usage of a user, a domain, or a project (`domain/name`)."""
        return self._call("GET", path_to("quotas", kind, name))

    def alerts(self, *, limit: int = 100, **filters: str | None) -> list[Alert]:
        """Return alerts, newest first (auditors); filters: state (open, closed, all), kind,
        subject.
        """
        return list(self._pages("/alerts", filters, limit))

    def alert(self, alert_id: int) -> Alert:
        """Return one alert (auditors)."""
        return self._call("GET", f"/alerts/{alert_id}")

    def close_alert(self, alert_id: int, *, reason: str = "") -> Alert:
        """Close an alert, which is raised again if its cause persists (operators)."""
        return self._call("POST", f"/alerts/{alert_id}/close", body={"reason": reason})

    def put_quota(self, kind: str, name: str, changes: Mapping[str, Any]) -> Quota:
        """Set limits; omitted ones keep their values, None removes one (operators)."""
        return self._call("PUT", path_to("quotas", kind, name), body=changes)

    def delete_quota(self, kind: str, name: str) -> None:
        """Delete a quota: the default quota of its kind applies again (operators)."""
        self._call("DELETE", path_to("quotas", kind, name))

    def usage(self, *, limit: int = 1000, **filters: str | None) -> list[UsageRow]:
        """Return requested and used resources, the largest waste first.

        Filters, such as month, by and project, are the parameters of `GET /usage`.
        """
        return list(self._pages("/usage", filters, limit))

    def usage_csv(self, **filters: str | None) -> str:
        """Return the same as CSV."""
        return self._send("GET", "/usage.csv", query=filters).text
