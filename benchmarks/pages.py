"""PAGES: the operators' pages with a million ended tasks and ten thousand that wait or run."""

import re
import threading
import time
import urllib.error
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit
from urllib.request import (
    HTTPCookieProcessor,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from benchmarks.copies import Connection, make_old_jobs
from benchmarks.description import Description, Figures, Options, at_most
from benchmarks.report import Result, median, others_note
from benchmarks.stand import Stand, Wanted, standing
from benchmarks.usage import Others, cpu_seconds, spent

CELLS = 4
SIZES = ((200, 4_000), (200_000, 1))
OPEN_TASKS = 10_000
MOST_RUNNING = 640
REQUESTS = 10
REPEATED = 100
MAX_P95_MS = 100
OPEN_PAGES = 25
POLL_SECONDS = 4.0
MINUTE = 60.0
# Of each kind of page; filters are combined in endless ways.
EXAMPLES = 2
MOST_PARAMETERS = 2
SLOWEST = 15

_NUMBER = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<![a-z])\d+(?![a-z])")
# The page names the version for its next poll, as a text of JavaScript.
_ETAG = re.compile(r'"If-None-Match": "\\u0022(\w+)\\u0022"')
# Forms that change something, and other answers than pages.
_SKIPPED = re.compile(r"logout|/delete/|/add/|/autocomplete/|jsi18n|download|/export|/usage/file/")


def _slowest(figures: Figures) -> float:
    return max(float(page["p95_ms"]) for page in figures["pages"].values())


ABOUT = Description(
    id="PAGES",
    title="the admin with a million tasks",
    claim="Each page of the admin appears at once, also with a million tasks.",
    workload="A million ended tasks (200 jobs of 4,000 and 200,000 of one, copies of one real"
    " job), 640 that run and 9,560 that wait; the short size has a tenth of the ended tasks.",
    peer="None.",
    method="Each page to which links of the admin lead is requested once, two of each kind and"
    f" combination of filters. Those without filters, and the {REPEATED} slowest, are requested"
    f" {REQUESTS} more times. Then {OPEN_PAGES} live pages are left open for a minute while"
    " nothing happens: the CPU of web and database for them. Always one run. The short size"
    " requests a quarter of the slowest pages, follows one filter, and leaves pages open for 15"
    " s.",
    budget_seconds=110,
    targets=(
        at_most(MAX_P95_MS, "p95 of the slowest page", _slowest, "ms"),
        at_most(5, "CPU of the open pages", lambda it: it["idle"]["percent"], "% of a core"),
    ),
)


def run(options: Options) -> Result:
    """Request each page many times."""
    tiny = ((2, 100), (200, 1))
    short = tuple((count // 10, size) for count, size in SIZES)
    sizes = options.pick(tiny=tiny, short=short, full=SIZES)
    minute = options.pick(tiny=2.0, short=15.0, full=MINUTE)
    most_parameters = options.pick(tiny=0, short=1, full=MOST_PARAMETERS)
    repeated = options.pick(tiny=3, short=REPEATED // 4, full=REPEATED)
    requests = options.pick(tiny=2, short=REQUESTS, full=REQUESTS)
    result = Result(
        "PAGES",
        f"operators' pages with {sum(count * size for count, size in sizes):,} ended tasks",
        ("page", "median ms", "p95 ms", "answer KiB"),
    )
    with standing(Wanted(cells=CELLS)) as stand, stand.connect() as connection:
        make_old_jobs(stand, connection, sizes)
        _make_open_work(stand, connection)
        browser = Browser(stand)
        browser.log_in()
        others = Others(stand.pids)
        paths = dict(browser.crawl(most_parameters))
        slow = set(sorted(paths, key=lambda path: -paths[path])[:repeated])
        again = [path for path in paths if "?" not in path or path in slow]
        measured = {path: browser.measure(path, requests) for path in again}
        idle = _measure_idle(
            stand, browser, [path for path in paths if browser.is_live(path)], minute
        )
        busy = others.cores()
    slowest = sorted(measured, key=lambda path: -measured[path]["p95_ms"])
    for path in slowest[:SLOWEST]:
        figures = measured[path]
        row = (f"{figures['median_ms']:.0f}", f"{figures['p95_ms']:.0f}", f"{figures['kib']:.0f}")
        result.rows.append((path, *row))
    late = [path for path in measured if measured[path]["p95_ms"] > MAX_P95_MS]
    result.notes += [
        f"{len(paths)} pages, {len(measured)} of them requested {requests} times, {len(late)} above"
        f" {MAX_P95_MS} ms (p95).",
        f"{OPEN_PAGES} open pages: {idle['percent']:.1f} % of a core more than none; answers to"
        f" their polls: {_listed(idle['polls'])}.",
        others_note([busy]),
    ]
    result.figures = {"pages": measured, "idle": idle, "cores_used_by_others": busy}
    return result


def _make_open_work(stand: Stand, connection: Connection) -> None:
    job = {
        "name": "open",
        "replicas": OPEN_TASKS,
        "task_type": "process",
        "command": ["sleep", "3600"],
        "resources": {"cpu": 0.1, "memory": "16Mi", "disk": "1Mi"},
    }
    key = stand.post("/api/v1/jobs", job)["id"]
    for number in range(20):
        stand.post("/api/v1/jobs", {**job, "name": f"behind-{number}", "replicas": 10})

    def runs() -> bool:
        found = connection.execute(
            "SELECT count(*) FROM controlplane_task WHERE job_id = %s AND started_at IS NOT NULL",
            [key],
        ).fetchone()
        return found is not None and found[0] >= MOST_RUNNING

    stand.wait_until(runs, "the cells are full", seconds=60)


def _measure_idle(
    stand: Stand, browser: "Browser", paths: list[str], seconds: float
) -> dict[str, Any]:
    """CPU time of web and database in a minute with open pages, less that of one without."""
    before = cpu_seconds(stand.pids)
    time.sleep(seconds)
    without = _percent(spent(before, cpu_seconds(stand.pids)), seconds)
    stop = threading.Event()
    answers: Counter[int] = Counter()
    opened = [paths[number % len(paths)] for number in range(OPEN_PAGES)]
    threads = [
        threading.Thread(target=browser.keep_open, args=(path, stop, answers)) for path in opened
    ]
    for number, thread in enumerate(threads):
        thread.start()
        time.sleep(POLL_SECONDS / OPEN_PAGES if number else 0)
    time.sleep(POLL_SECONDS)
    answers.clear()
    before = cpu_seconds(stand.pids)
    time.sleep(seconds)
    during = _percent(spent(before, cpu_seconds(stand.pids)), seconds)
    polls = dict(answers)
    stop.set()
    for thread in threads:
        thread.join()
    wanted = seconds / POLL_SECONDS * OPEN_PAGES
    if sum(polls.values()) < wanted / 2 or set(polls) - {200, 304}:
        raise RuntimeError(f"answers to about {wanted:.0f} polls: {_listed(polls)}")
    return {
        "without": without,
        "with": during,
        "percent": during - without,
        "polls": polls,
        "paths": opened,
    }


def _listed(polls: Mapping[int, int]) -> str:
    return ", ".join(f"{count} of {status}" for status, count in sorted(polls.items()))


def _percent(used: Mapping[str, float], seconds: float) -> float:
    return 100 * (used["web"] + used["postgres"]) / seconds


class Browser:
    """An operator's session, without scripts and styles."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._url = stand.plan.url
        self._cookies = CookieJar()
        self._pages: dict[str, str] = {}

    def log_in(self) -> None:
        """Log in by the form."""
        path = "/admin/login/"
        self.get(path)
        token = next(cookie.value for cookie in self._cookies if "csrf" in cookie.name)
        secret = self._stand.plan.credentials
        form = {
            "csrfmiddlewaretoken": token or "",
            "username": secret.admin_user,
            "password": secret.admin_password,
            "next": "/admin/",
        }
        headers = {"Referer": self._url + path}
        request = Request(self._url + path, urlencode(form).encode(), headers)
        with self._opener().open(request, timeout=60) as answer:
            if answer.url.rstrip("/") != self._url + "/admin":
                raise RuntimeError(f"the login leads to {answer.url}")

    def crawl(self, most_parameters: int) -> Iterator[tuple[str, float]]:
        """Follow links from the overview; yield paths of each kind of page and milliseconds."""
        found: dict[str, int] = defaultdict(int)
        waiting, seen = ["/admin/"], set[str]()
        while waiting:
            path = waiting.pop(0)
            if path in seen or _SKIPPED.search(path):
                continue
            seen.add(path)
            kind = _NUMBER.sub("N", path)
            if found[kind] >= EXAMPLES or path.count("=") > most_parameters:
                continue
            began = time.perf_counter()
            try:
                text = self.get(path)
            except urllib.error.HTTPError as error:
                raise RuntimeError(f"GET {path}: {error.code}") from None
            if "<html" not in text:
                continue
            found[kind] += 1
            self._pages[path] = text
            yield path, 1000 * (time.perf_counter() - began)
            waiting += [link for link in _links(path, text) if link not in seen]

    def is_live(self, path: str) -> bool:
        """Return whether the page refreshes itself."""
        return 'id="live"' in self._pages[path]

    def measure(self, path: str, requests: int) -> dict[str, float]:
        """Request the page many times."""
        times = []
        for _ in range(requests):
            opener = self._opener()
            began = time.perf_counter()
            with opener.open(self._url + path, timeout=60) as answer:
                content = answer.read()
            times.append(1000 * (time.perf_counter() - began))
        times.sort()
        p95 = times[int(0.95 * (len(times) - 1))]
        return {"median_ms": median(times), "p95_ms": p95, "kib": len(content) / 1024}

    def keep_open(self, path: str, stop: threading.Event, answers: Counter[int]) -> None:
        """Poll as the script of the page does; count the status codes."""
        opener, etag = self._opener(), ""
        while not stop.is_set():
            headers = {"HX-Request": "true", "If-None-Match": etag}
            try:
                with opener.open(Request(self._url + path, headers=headers), timeout=60) as answer:
                    found = _ETAG.search(answer.read().decode())
                    etag = f'"{found[1]}"' if found else ""
                    answers[answer.status] += 1
            except urllib.error.HTTPError as error:
                answers[error.code] += 1
            stop.wait(POLL_SECONDS)

    def get(self, path: str) -> str:
        """Request a page; return its text."""
        with self._opener().open(self._url + path, timeout=60) as answer:
            return str(answer.read().decode())

    def _opener(self) -> OpenerDirector:
        return build_opener(ProxyHandler({}), HTTPCookieProcessor(self._cookies))


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a" and (target := dict(attrs).get("href")):
            self.found.append(target)


def _links(path: str, text: str) -> list[str]:
    parser = _Links()
    parser.feed(text)
    targets = [urlsplit(urljoin(path, link)) for link in parser.found]
    paths = [f"{target.path}?{target.query}".rstrip("?") for target in targets if not target.netloc]
    return [path for path in paths if path.startswith("/admin/")]
