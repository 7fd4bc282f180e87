"""Wait until the stack is ready: web and Flower respond, and every cell is READY."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts.engine import Echo
from controlplane.config.stack.parts.home import StackHome
from controlplane.config.stack.processes import Process, StackPlan

READY_SECONDS = 90.0
POLL_SECONDS = 0.5
REPEAT_SECONDS = 10.0
LOG_LINES = 15


def wait_until_ready(
    plan: StackPlan, processes: list[Process], echo: Echo, check_alive: Callable[[], None]
) -> None:
    """Wait until everything is ready; print what is not. Raise StackError with logs."""
    give_up = time.monotonic() + READY_SECONDS
    printed, printed_at = "", 0.0
    while missing := _missing(plan, processes):
        check_alive()
        now = time.monotonic()
        text = "waiting for " + ", ".join(f"{name} ({why})" for name, why in missing.items())
        if now > give_up:
            fault = f"the stack is not ready after {READY_SECONDS:.0f} s: still {text}"
            raise StackError("\n".join([fault, *log_ends(plan.home, list(missing))]))
        if (text != printed and now - printed_at > 1) or now - printed_at > REPEAT_SECONDS:
            printed, printed_at = text, now
            echo(text)
        time.sleep(POLL_SECONDS)


def _missing(plan: StackPlan, processes: list[Process]) -> dict[str, str]:
    """Return what is not ready, and why."""
    missing = {
        process.name: "not started"
        for process in processes
        if not plan.home.pid_file(process.name).exists()
    }
    for name, url in (("web", f"{plan.url}/readyz"), ("flower", f"{plan.flower_url}/healthcheck")):
        status, answer = get(url)
        if status != 200:
            missing[name] = answer
    if not missing:
        missing.update(_cells_not_ready(plan) if plan.cells else {})
    return missing


def _cells_not_ready(plan: StackPlan) -> dict[str, str]:
    status, answer = get(f"{plan.url}/api/v1/cells", token=plan.credentials.operator_token)
    if status != 200:
        return {"web": f"GET /api/v1/cells: {answer}"}
    states = {
        cell["name"]: cell["state"] if cell["incarnation"] else "not registered yet"
        for cell in json.loads(answer)["results"]
    }
    return {
        name: states.get(name, "not enrolled")
        for name in plan.cell_names
        if states.get(name) != "READY"
    }


def get(url: str, *, token: str = "") -> tuple[int, str]:
    """Return the status (0: no response) and the text of the response."""
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        # No proxy: the stack is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as fault:
        answer = fault.read().decode(errors="replace").strip()
        return fault.code, f"{fault.code} {fault.reason}: {answer.splitlines()[0][:200]}"
    except OSError as fault:
        return 0, str(getattr(fault, "reason", fault))


def log_ends(home: StackHome, names: list[str]) -> list[str]:
    """Return the last lines of the logs of these processes."""
    lines = []
    for name in names:
        path = home.logs / f"{name}.log"
        if path.exists():
            tail = path.read_text(errors="replace").splitlines()[-LOG_LINES:]
            lines += [f"--- the end of {path}", *tail]
    return lines
