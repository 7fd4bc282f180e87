"""Prepare the database, tables, accounts and enrolled cells before the processes start."""

import json
import subprocess
import sys
from collections.abc import Callable

import psycopg
from psycopg import sql

from controlplane.config.env import InvalidSettings, load_settings
from controlplane.config.stack import readiness
from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts import postgres
from controlplane.config.stack.parts.engine import Echo
from controlplane.config.stack.parts.home import write_private
from controlplane.config.stack.processes import PROJECT, StackPlan, inherited_environment

DATABASE_READY_SECONDS = 60.0


def check_settings(plan: StackPlan) -> None:
    """Raise StackError for invalid settings, which each process would refuse later."""
    try:
        load_settings(plan.control_environment("command"))
    except InvalidSettings as fault:
        raise StackError(str(fault)) from None


def prepare(plan: StackPlan, echo: Echo, check_alive: Callable[[], None]) -> None:
    """Create or upgrade database, tables, accounts and cells. Idempotent."""
    if plan.database:
        echo(f"waiting for PostgreSQL at {plan.database.address}")
        try:
            postgres.wait_until_ready(plan.database, deadline_seconds=DATABASE_READY_SECONDS)
        except StackError as fault:
            raise StackError(
                "\n".join([str(fault), *readiness.log_ends(plan.home, ["postgres"])])
            ) from None
        check_alive()
        _create_database(plan)
    echo("migrating the database")
    for name, key in json.loads(_bring_up_to_date(plan)).items():
        folder = plan.home.cell(name)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(folder / "key", f"{key}\n")


def _create_database(plan: StackPlan) -> None:
    assert plan.database is not None
    with psycopg.connect(
        host="127.0.0.1",
        port=plan.database.port,
        user=postgres.USER,
        password=plan.credentials.database_password,
        dbname="postgres",
        autocommit=True,
    ) as connection:
        found = connection.execute(
            "SELECT 1 FROM pg_database WHERE datname = %s", [postgres.DATABASE]
        ).fetchone()
        if not found:
            name = sql.Identifier(postgres.DATABASE)
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name))


def _bring_up_to_date(plan: StackPlan) -> str:
    """Return the output of the step, or raise StackError with it."""
    secret = plan.credentials
    environment = {
        **inherited_environment(),
        **plan.control_environment("command"),
        # Through the environment: every user of the machine can read a command line.
        "CELLRUN_ADMIN_USER": secret.admin_user,
        "CELLRUN_ADMIN_PASSWORD": secret.admin_password,
        "CELLRUN_OPERATOR_TOKEN": secret.operator_token,
        "CELLRUN_TOKEN": secret.submitter_token,
    }
    done = subprocess.run(
        [sys.executable, "-m", "controlplane.config.stack.tables", *plan.cell_names],
        env=environment,
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        output = f"{done.stdout}{done.stderr}".rstrip()
        raise StackError(f"the database could not be prepared:\n{output}")
    return done.stdout.splitlines()[-1]
