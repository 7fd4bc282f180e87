"""What is always true of the rows, numbered once; the simulation and operators check it."""

from controlplane.domain.integrity.catalogue import INVARIANTS, find_violations, render_document
from controlplane.domain.integrity.rows import IntegrityRows, Invariant, InvariantViolation

__all__ = [
    "INVARIANTS",
    "IntegrityRows",
    "Invariant",
    "InvariantViolation",
    "find_violations",
    "render_document",
]
