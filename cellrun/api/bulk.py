"""Call the API about bulk operations: count jobs, start, read and stop an operation."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from cellrun.api.paths import path_to
from cellrun.api.transport import ApiTransport
from cellrun.documents import BulkCount, BulkOperation

Action = Literal["cancel", "retry", "delete", "hold", "release"]


class BulkCalls(ApiTransport):
    """The calls about bulk operations. Every method may raise Unreachable or ApiError.

    `jobs`: the filter with project, pool, name, labels and states, as in docs/api.md.
    """

    def preview_bulk(self, action: Action, jobs: Mapping[str, Any]) -> BulkCount:
        """Count the jobs that an operation would process. Change nothing."""
        return self._call("POST", "/bulk:preview", body={"action": action, "filter": jobs})

    def start_bulk(self, action: Action, jobs: Mapping[str, Any], *, reason: str) -> BulkOperation:
        """Start an operation on all matching jobs that the caller may change."""
        body = {"action": action, "filter": jobs, "reason": reason}
        return self._call("POST", "/bulk", body=body)

    def bulk_operations(self, *, limit: int = 50) -> Iterator[BulkOperation]:
        """Yield the newest operations: own ones; for operators and auditors, all."""
        return self._pages("/bulk", {}, limit)

    def bulk_operation(self, operation_id: int) -> BulkOperation:
        """Return one operation with its progress."""
        return self._call("GET", path_to("bulk", operation_id))

    def stop_bulk(self, operation_id: int) -> BulkOperation:
        """Process no further job; processed ones stay changed."""
        return self._call("POST", path_to("bulk", operation_id, "stop"), body={})
