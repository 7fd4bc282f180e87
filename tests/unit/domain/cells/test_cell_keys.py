"""A cell's key follows from the secret, its name and its salt, and from nothing else."""

from controlplane.contract.wire.keys import KEY_BYTES, derive_key
from controlplane.domain.cells.keys import CellAddress, cell_key

SECRET, SALT = "only-for-tests-" * 4, "00ff" * 8


def test_a_key_is_derived_from_secret_name_and_salt() -> None:
    key = cell_key(SECRET, name="north", salt=SALT)
    derived = derive_key(SECRET.encode(), salt=bytes.fromhex(SALT), info=b"cellrun cell north")
    assert key == derived
    assert len(key) == KEY_BYTES


def test_different_secret_name_or_salt_gives_a_different_key() -> None:
    keys = {
        cell_key(SECRET, name="north", salt=SALT),
        cell_key(SECRET, name="south", salt=SALT),
        cell_key(SECRET, name="north", salt="11" * 16),
        cell_key("another-secret-" * 4, name="north", salt=SALT),
    }
    assert len(keys) == 4


def test_repr_of_a_cell_address_hides_the_key() -> None:
    assert "c3VwZXI" not in repr(CellAddress(1, "north", "one", b"c3VwZXI"))
