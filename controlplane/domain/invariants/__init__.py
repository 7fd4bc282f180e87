"""What is always true of the rows, numbered once; the simulation and operators check it."""

from controlplane.domain.invariants.catalogue import INVARIANTS, find_violations, render_document
from controlplane.domain.invariants.rows import Invariant, Ledger, Violation

__all__ = [
    "INVARIANTS",
    "Invariant",
    "Ledger",
    "Violation",
    "find_violations",
    "render_document",
]
