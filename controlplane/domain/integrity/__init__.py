"""Numbered invariants of the stored rows, checked by the simulation and by operators."""

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
