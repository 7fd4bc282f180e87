"""`make up`: run the stack in the foreground until Ctrl-C."""

import signal
import sys

from controlplane.config.stack import options
from controlplane.config.stack.processes import StackPlan
from controlplane.config.stack.running import Stack


def run() -> int:
    """Run the stack; return 0 after Ctrl-C, 1 if it ended unexpectedly."""
    chosen = options.from_process()
    try:
        with Stack(chosen, echo) as stack:
            assert stack.plan is not None
            text = welcome(stack.plan, chosen.engine, with_secrets=sys.stdout.isatty())
            print(text, flush=True)
            try:
                return stack.wait()
            except KeyboardInterrupt:
                # A second Ctrl-C would interrupt the clean stop.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                echo("stopping")
    except KeyboardInterrupt:
        return 130
    echo("stopped")
    return 0


def echo(text: str) -> None:
    """Print a message to the terminal."""
    print(f"cellrun: {text}", flush=True)


def welcome(plan: StackPlan, engine: str, *, with_secrets: bool) -> str:
    """Return the addresses and logins of the stack.

    `with_secrets`: False for a log, which others may read; the file of the logins is named instead.
    """
    notes = {
        "docker": "",
        "process": "  tasks      processes of this machine, WITHOUT ISOLATION\n",
        "none": "  tasks      simulated (memory driver): nothing is executed\n",
    }
    secret = plan.credentials

    def shown(value: str) -> str:
        return value if with_secrets else "…"

    logins = "" if with_secrets else f"  logins     {plan.home.root / 'credentials.json'}\n"
    admin, flower = shown(secret.admin_password), shown(secret.flower_password)
    return (
        f"\nCellrun is up with {plan.cells} cell(s).\n"
        f"  admin      {plan.url}/admin/   login {secret.admin_user} / {admin}\n"
        f"  API        {plan.url}/api/v1/   documentation {plan.url}/api/docs/\n"
        f"  Flower     {plan.flower_url}   login {secret.flower_user} / {flower}\n"
        f"  submitter  {shown(secret.submitter_token)}   (a token: Authorization: Bearer …)\n"
        f"  operator   {shown(secret.operator_token)}   (a token for cells, projects and users)\n"
        f"{logins}{notes[engine]}"
        f"  shell      . {plan.home.environment_file}   then: .venv/bin/cellrun jobs\n"
        f"  logs       {plan.home.logs}\n"
        "Ctrl-C stops the stack.\n"
    )
