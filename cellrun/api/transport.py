"""Send requests to the API: authentication, pages, redirects to a store, errors."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

from cellrun.api.paths import Query
from cellrun.api.polling import TRANSIENT, PollInterval, repeat_refused
from cellrun.errors import ApiError, Unreachable
from cellrun.settings import ClientSettings

# A submission of 10,000 tasks takes seconds; a connection does not.
CONNECT_SECONDS = 5.0
RESPONSE_SECONDS = 60.0
MOST_ROWS = 100_000
PIECE_BYTES = 256 * 1024
# A killed web process restarts within seconds; a wait retries for longer.
PATIENCE_TRIES = 30

T = TypeVar("T")


class ApiTransport:
    """Connections to the API at `settings.url`. Every method may raise Unreachable or ApiError."""

    def __init__(self, settings: ClientSettings) -> None:
        self.url = settings.url
        self._http = requests.Session()
        self._http.trust_env = False  # no ~/.netrc: it would replace the token
        self._store = requests.Session()  # sends no token
        self._store.trust_env = False
        self._http.proxies = requests.utils.get_environ_proxies(settings.url)
        self._http.headers["Authorization"] = f"Bearer {settings.token}"
        self._http.headers["Accept"] = "application/json, application/problem+json"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        self._store.close()

    def patiently(self, request: Callable[[], T], pace: PollInterval) -> T:
        """Return the result of `request`; repeat it while the server is unavailable."""
        for _ in range(PATIENCE_TRIES):
            try:
                return request()
            except Unreachable:
                pace.rest(f"server {self.url}")
            except ApiError as fault:
                if fault.status not in TRANSIENT:
                    raise
                pace.rest(f"server {self.url}")
        return request()

    def _pages(
        self, path: str, query: Query | None = None, limit: int = MOST_ROWS
    ) -> Iterator[Any]:
        page = self._call("GET", path, query={**(query or {}), "limit": min(limit, 1000)})
        while True:
            yield from page["results"][:limit]
            limit -= len(page["results"])
            if limit <= 0 or not page.get("next"):
                return
            page = self._call("GET", page["next"])

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        key: str | None = None,
    ) -> Any:
        headers = {"Idempotency-Key": key} if key is not None else {}
        answer = self._send(method, path, query=query, body=body, headers=headers)
        if not answer.content:
            return None
        try:
            return answer.json()
        except ValueError:
            raise Unreachable(self.url, "the server is not Cellrun's API: check the URL") from None

    def _send(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request (see `_send_once`); see `repeat_refused` for what is sent again."""
        return repeat_refused(
            lambda: self._send_once(method, path, **options),
            is_repeatable=_is_repeatable(method, options),
        )

    def open_stream(
        self, path: str, *, query: Query, headers: Mapping[str, str]
    ) -> requests.Response:
        """Return a response that lasts, without another try."""
        return self._send_once("GET", path, query=query, headers=headers, stream=True)

    def lines_of(self, answer: requests.Response) -> Iterator[str]:
        """Yield the lines of a response that lasts, as they arrive. Raise Unreachable."""
        rest = b""
        try:
            # Not `iter_content`, which waits for whole pieces if a proxy removes the chunks.
            while piece := answer.raw.read1(PIECE_BYTES, decode_content=True):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield line.decode("utf-8", "replace").rstrip("\r")
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as fault:
            # ValueError: another thread has closed the response.
            raise Unreachable(self.url, _why(fault)) from None

    def _send_once(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> requests.Response:
        try:
            answer = self._http.request(
                method,
                self._address(path),
                params={k: v for k, v in (query or {}).items() if v is not None},
                json=body,
                headers=headers,
                timeout=(CONNECT_SECONDS, RESPONSE_SECONDS),
                allow_redirects=False,
                stream=stream,
            )
            if stream and answer.is_redirect:
                return self._follow(answer, headers or {})
        except requests.RequestException as fault:
            raise Unreachable(self.url, _why(fault), cause=_connection_fault(fault)) from None
        if answer.is_redirect:
            raise Unreachable(
                self.url, f"it redirects to {answer.headers.get('Location')}: use that URL"
            )
        if not answer.ok:
            pause = answer.headers.get("Retry-After")
            raise ApiError(answer.status_code, _problem(answer), self.url, retry_after=pause)
        return answer

    def _open(self, path: str, headers: Mapping[str, str] | None = None) -> requests.Response:
        # Offsets are those of the stored file.
        plain = {**(headers or {}), "Accept-Encoding": "identity"}
        return self._send("GET", path, headers=plain, stream=True)

    def _pieces(self, answer: requests.Response) -> Iterator[bytes]:
        try:
            yield from answer.iter_content(PIECE_BYTES)
        except requests.RequestException as fault:
            raise Unreachable(self.url, _why(fault)) from None

    def _follow(self, answer: requests.Response, headers: Mapping[str, str]) -> requests.Response:
        """Return the file at the link of a store to which the API redirects, without the token.

        The ETag there need not be the SHA-256, so `If-Range` is omitted: callers check the content.
        """
        answer.close()
        link = urljoin(answer.url, answer.headers["Location"])
        parts = urlsplit(link)
        if parts.scheme not in ("http", "https"):
            raise Unreachable(self.url, f"it redirects to {parts.scheme}")
        # Not the whole link, since it contains a signature.
        host = f"{parts.scheme}://{parts.netloc}"
        try:
            found = self._store.get(
                link,
                headers={name: value for name, value in headers.items() if name != "If-Range"},
                timeout=(CONNECT_SECONDS, RESPONSE_SECONDS),
                allow_redirects=False,
                stream=True,
                proxies=requests.utils.get_environ_proxies(link),
            )
        except requests.RequestException as fault:
            raise Unreachable(host, _why(fault)) from None
        if found.status_code not in (200, 206):
            found.close()
            raise ApiError(found.status_code, {}, host)
        return found

    def _address(self, path: str) -> str:
        """Return the URL of a path or of a page's `next`, always at the configured host."""
        _, found, rest = path.partition("/api/v1/")
        return f"{self.url}/api/v1/{rest}" if found else f"{self.url}/api/v1{path}"


def _is_repeatable(method: str, options: Mapping[str, Any]) -> bool:
    """Return whether a request that may have arrived can be sent again.

    A submission with a guid, or a key, has the same result each time.
    """
    if method in ("GET", "PUT"):
        return True
    body, headers = options.get("body"), options.get("headers") or {}
    jobs = body.get("jobs", [body]) if isinstance(body, Mapping) else []
    has_guids = bool(jobs) and all(isinstance(job, Mapping) and job.get("guid") for job in jobs)
    return "Idempotency-Key" in headers or (method == "POST" and has_guids)


def _connection_fault(fault: BaseException) -> ConnectionError | None:
    """Return the refusal or the loss of the connection that caused `fault`."""
    causes: list[object] = [fault]
    while causes:
        cause = causes.pop()
        if isinstance(cause, ConnectionError):
            return cause
        if isinstance(cause, BaseException):
            causes += [*cause.args, getattr(cause, "reason", None), cause.__cause__]
    return None


def _problem(answer: requests.Response) -> dict[str, Any]:
    try:
        problem = answer.json()
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _why(fault: Exception) -> str:
    """Return the cause in a few words, without the layers around it."""
    match fault:
        case requests.exceptions.SSLError():
            return "its TLS certificate is not trusted"
        case requests.ConnectTimeout():
            return f"no connection within {CONNECT_SECONDS:g} s"
        case requests.Timeout():
            return f"no response within {RESPONSE_SECONDS:g} s"
    cause: BaseException | None = fault
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        reason = getattr(cause, "reason", None) or (cause.args[0] if cause.args else None)
        cause = reason if isinstance(reason, BaseException) else cause.__cause__
    return "the connection failed"
