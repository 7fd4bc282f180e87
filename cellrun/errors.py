"""Define the errors of the client: one class per cause, each with a readable message."""

from collections.abc import Mapping, Sequence
from typing import Any

# EXIT_FAILED, or the exit code of the task: the job did not succeed. EXIT_TROUBLE: the command
# failed, for example because of an invalid option.
EXIT_FAILED = 1
EXIT_TROUBLE = 2
EXIT_INTERRUPTED = 130

# A part of the detail of a refusal for lack of the role, and what to do then.
NEEDS_OPERATOR = "needs a token with the role operator"
OPERATORS_TOKEN = (
    "  set CELLRUN_TOKEN to the token of an operator, or run `cellrun login URL` with it"
)

# If a response that demands a pause, for example a proxy's, has no Retry-After.
USUAL_PAUSE_SECONDS = 1.0


class ClientError(Exception):
    """Base of the errors that the command prints without a traceback."""

    def lines(self) -> list[str]:
        """Return the lines to print, the most important first."""
        return [str(self)]


class NotConfigured(ClientError):
    """No URL or token is configured."""


class BadInput(ClientError):
    """A file or an option is invalid; no request was sent."""


class InvalidJob(BadInput):
    """A job has invalid fields; `faults` has the field and the detail of each."""

    def __init__(self, source: str, faults: Sequence[Mapping[str, str]]) -> None:
        self._head = f"{source}: 1 fault" if len(faults) == 1 else f"{source}: {len(faults)} faults"
        self._faults = [_fault(item) for item in faults]
        super().__init__(self._head)

    def lines(self) -> list[str]:
        """Return the number of faults, and a line for each."""
        return [self._head, *(f"  {fault}" for fault in self._faults)]


class Unreachable(ClientError):
    """The connection to `url` failed, or the response was not from the API.

    `is_refused`: nothing was sent, since the server refused the connection; `is_lost`: it closed
    the connection. Both happen while it restarts.
    """

    def __init__(self, url: str, why: str, *, cause: ConnectionError | None = None) -> None:
        super().__init__(f"no valid response from {url}: {why}")
        self.url = url
        self.is_refused = isinstance(cause, ConnectionRefusedError)
        self.is_lost = cause is not None and not self.is_refused


class StillOpen(ClientError):
    """The deadline of a wait passed; the job continues."""


class ApiError(ClientError):
    """The API returned an error: an RFC 9457 problem document, or only a status."""

    def __init__(
        self, status: int, problem: Mapping[str, Any], url: str, *, retry_after: str | None = None
    ) -> None:
        self.status = status
        has_seconds = retry_after is not None and retry_after.isascii() and retry_after.isdigit()
        self.has_pause = has_seconds
        self.pause_seconds = float(retry_after or 0) if has_seconds else USUAL_PAUSE_SECONDS
        self.problem = dict(problem)
        self.url = url
        super().__init__(self.lines()[0])

    def lines(self) -> list[str]:
        """Return the fault and the status; with several faults, one line for each.

        The title has the words of HTTP, which explain less than a detail.
        """
        title = str(self.problem.get("title") or f"HTTP {self.status} from {self.url}")
        faults = [_fault(item) for item in self.problem.get("errors") or []]
        if len(faults) > 1:
            head = f"the request has {len(faults)} faults [{self.status}]"
            return [head, *(f"  {fault}" for fault in faults)]
        detail = faults[0] if faults else str(self.problem.get("detail") or "").rstrip(".")
        text = detail or title
        lines = [f"{text} [{self.status}{self._request()}]"]
        return [*lines, OPERATORS_TOKEN] if self.status == 403 and NEEDS_OPERATOR in text else lines

    def _request(self) -> str:
        """Return the id of a request that the server failed to answer, for its operator."""
        request_id = self.problem.get("request_id")
        is_failure = self.status >= 500 and isinstance(request_id, str)
        return f", request {request_id}" if is_failure else ""


def _fault(item: Any) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    field, text = item.get("field"), item.get("detail", "")
    return f"{field}: {text}" if field else str(text)
