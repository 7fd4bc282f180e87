"""`make up`: run the stack in the foreground until Ctrl-C."""

import signal

from controlplane.config.stack import options
from controlplane.config.stack.processes import StackPlan
from controlplane.config.stack.running import Stack


def run() -> int:
    """Run the stack; return 0 after Ctrl-C, 1 if it ended unexpectedly."""
    chosen = options.from_process()
    try:
        with Stack(chosen, echo) as stack:
            assert stack.plan is not None
            print(welcome(stack.plan, chosen.engine), flush=True)
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


def welcome(plan: StackPlan, engine: str) -> str:
    """Return the addresses and logins of the stack."""
    notes = {
        "docker": "",
        "process": "  tasks      processes of this machine, WITHOUT ISOLATION\n",
        "none": "  tasks      simulated (memory driver): nothing is executed\n",
    }
    secret = plan.credentials
    return (
        f"\nCellrun is up with {plan.cells} cell(s).\n"
        f"  admin      {plan.url}/admin/   login {secret.admin_user} / {secret.admin_password}\n"
        f"  API        {plan.url}/api/v1/   documentation {plan.url}/api/docs/\n"
        f"  Flower     {plan.flower_url}   login {secret.flower_user} / {secret.flower_password}\n"
        f"  submitter  {secret.submitter_token}   (a token: Authorization: Bearer …)\n"
        f"  operator   {secret.operator_token}   (a token for cells, projects and users)\n"
        f"{notes[engine]}"
        f"  shell      . {plan.home.environment_file}   then: .venv/bin/cellrun jobs\n"
        f"  logs       {plan.home.logs}\n"
        "Ctrl-C stops the stack.\n"
    )
