"""`cellrun-cell join ADDRESS TOKEN`: check this host, then write the settings and key of a cell."""

import argparse
import grp
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from controlplane.contract.wire import keys
from controlplane.contract.wire.join_token import JoinToken, MalformedToken
from workers.config import NAME, CellConfig, MalformedSettings
from workers.join.checks import check_host

GROUP = "cellrun"
REFUSED, FAULTY_INPUT = 1, 2


@dataclass(frozen=True, slots=True)
class JoinedFiles:
    """The files of a cell below one folder, as the unit `cellrun-cell@` reads them."""

    folder: Path
    cell: str

    @property
    def key(self) -> Path:
        """Return the path of the key."""
        return self.folder / "cells" / f"{self.cell}.key"

    @property
    def settings(self) -> Path:
        """Return the path of the settings, which a shell can read too."""
        return self.folder / "cells" / f"{self.cell}.env"


def add_join_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `join` to the commands of a cell."""
    parser = commands.add_parser(
        "join", help="check this host, and write a cell's settings and key"
    )
    parser.add_argument(
        "address", metavar="ADDRESS", help="address of web, as this host reaches it"
    )
    parser.add_argument(
        "token",
        metavar="TOKEN",
        help="from `manage.py enroll_cell NAME --join-token`; -: from stdin",
    )
    parser.add_argument("--folder", type=Path, default=Path("/etc/cellrun"), help="for the files")
    parser.add_argument("--home", type=Path, help="the cell's folder; below /var/lib/cellrun/cells")
    parser.add_argument("--driver", choices=("docker", "process"), default="docker")
    parser.add_argument(
        "--installation", help="label of its containers; default: the host name in ADDRESS"
    )
    parser.add_argument("--replace", action="store_true", help="replace the settings of this cell")


def join(options: argparse.Namespace) -> int:
    """Check this host and write the files; print the result. Return the exit code."""
    text = sys.stdin.read() if options.token == "-" else options.token
    try:
        token, address = JoinToken.decode(text), _address(options.address)
        if not NAME.fullmatch(token.cell):
            raise MalformedToken("the name in the join token is not the name of a cell")
        installation = _installation(options.installation, address)
    except ValueError as error:
        return _fail([str(error)], FAULTY_INPUT)
    found = check_host(address=address, token=token, driver=options.driver)
    for line in found.passed:
        sys.stdout.write(f"ok       {line}\n")
    for line in found.notes:
        sys.stdout.write(f"note     {line}\n")
    if found.problems:
        return _fail(found.problems, REFUSED)
    files = JoinedFiles(options.folder.absolute(), token.cell)
    settings = settings_of(
        token=token,
        files=files,
        address=address,
        home=(options.home or Path("/var/lib/cellrun/cells") / token.cell).absolute(),
        driver=options.driver,
        installation=installation,
    )
    try:
        write_files(files, token, settings, replace=options.replace)
    except OSError as error:
        return _fail([f"files: {error.filename}: {error.strerror}"], REFUSED)
    except (ExistingSettings, MalformedSettings) as error:
        return _fail([f"files: {error}"], REFUSED)
    sys.stdout.write(f"wrote    {files.settings}\nwrote    {files.key}\n")
    sys.stdout.write(
        f"{token.cell} may start: systemctl enable --now cellrun-cell@{token.cell}, or in a shell:"
        f" set -a; . {files.settings}; set +a; {shlex.quote(sys.executable)} -m workers\n"
    )
    return 0


class ExistingSettings(Exception):
    """The cell has settings on this host that differ."""


def settings_of(
    *,
    token: JoinToken,
    files: JoinedFiles,
    address: str,
    home: Path,
    driver: str,
    installation: str,
) -> dict[str, str]:
    """Return the settings of the cell."""
    return {
        "CELERY_BROKER_URL": token.broker_url,
        "CELLRUN_CELL_DRIVER": driver,
        "CELLRUN_CELL_HOME": str(home),
        "CELLRUN_CELL_KEY_FILE": str(files.key),
        "CELLRUN_CELL_NAME": token.cell,
        "CELLRUN_CONTROL_URL": address,
        "CELLRUN_INSTALLATION": installation,
    }


def write_files(
    files: JoinedFiles, token: JoinToken, settings: Mapping[str, str], *, replace: bool
) -> None:
    """Write key and settings, readable by their owner and, the key, by the group of the unit.

    Raise ExistingSettings, MalformedSettings (then only the key was written), OSError.
    """
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items())
    if files.settings.exists() and files.settings.read_text() != text and not replace:
        raise ExistingSettings(
            f"{files.settings} exists with other settings: change it there, or give --replace"
        )
    group = _group()
    folder = files.settings.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    folder.chmod(0o750 if group is not None else 0o700)
    if group is not None:
        os.chown(folder, -1, group)
    _write(files.key, keys.encode_key(token.key) + "\n", group)
    CellConfig.from_env(settings)
    _write(files.settings, text, None)


def default_installation(address: str) -> str:
    """Return the host name in the address of web, as the name of an installation."""
    host = re.sub(r"[^a-z0-9._-]+", "-", (urlsplit(address).hostname or "").lower())
    return host.strip("-._")[:63] or "cellrun"


def _installation(text: str | None, address: str) -> str:
    name = text or default_installation(address)
    if not NAME.fullmatch(name):
        allowed = "1 to 63 of a-z, 0-9, '.', '_' and '-', a letter or digit first"
        raise ValueError(f"--installation: {name[:100]!r} is not a name: {allowed}")
    return name


def _address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError(f"{text!r} is not an address of web such as https://cellrun.example.com")
    return text.rstrip("/")


def _group() -> int | None:
    """Return the id of the group of the unit's user; None without it, or if we are not root."""
    try:
        return grp.getgrnam(GROUP).gr_gid if os.geteuid() == 0 else None
    except KeyError:
        return None


def _write(path: Path, text: str, group: int | None) -> None:
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        if group is not None:
            os.fchown(file.fileno(), -1, group)
            os.fchmod(file.fileno(), 0o640)
    draft.replace(path)


def _fail(problems: list[str], code: int) -> int:
    for problem in problems:
        sys.stderr.write(f"problem  {problem}\n")
    sys.stderr.write("the cell was not joined\n")
    return code
