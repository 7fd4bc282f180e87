"""Passwords and tokens of a stack: generated once, stored in its state folder with mode 600."""

import json
import secrets
from dataclasses import asdict, dataclass, field

from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts.home import StackHome, write_private


@dataclass(frozen=True, slots=True)
class Credentials:
    """The secrets of a stack, and its installation id, which is not secret but permanent, too."""

    secret_key: str = field(repr=False)
    database_password: str = field(repr=False)
    admin_user: str
    admin_password: str = field(repr=False)
    operator_token: str = field(repr=False)
    submitter_token: str = field(repr=False)
    redis_password: str = field(repr=False)
    flower_user: str
    flower_password: str = field(repr=False)
    installation: str


def load_or_create(home: StackHome) -> Credentials:
    """Return the stored credentials of this folder, else generate and store them."""
    kept = home.root / "credentials.json"
    if kept.exists():
        try:
            credentials = Credentials(**json.loads(kept.read_text()))
        except (ValueError, TypeError):
            raise StackError(
                f"{kept} cannot be read: restore it, or remove {home.root} with all its content"
            ) from None
    else:
        credentials = Credentials(
            secret_key=secrets.token_urlsafe(48),
            database_password=secrets.token_urlsafe(24),
            admin_user="admin",
            admin_password=secrets.token_urlsafe(12),
            operator_token="cr_" + secrets.token_urlsafe(32),
            submitter_token="cr_" + secrets.token_urlsafe(32),
            redis_password=secrets.token_urlsafe(24),
            flower_user="flower",
            flower_password=secrets.token_urlsafe(12),
            installation=secrets.token_hex(6),
        )
        write_private(kept, json.dumps(asdict(credentials), indent=1) + "\n")
    # The file that controlplane.config.env reads.
    write_private(home.root / "secret-key", credentials.secret_key + "\n")
    return credentials
