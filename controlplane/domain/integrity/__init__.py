"""Numbered invariants of the stored rows, checked by the simulation and by operators."""

from controlplane.domain.integrity.catalogue import (
    INVARIANTS,
    REPAIRED,
    find_violations,
    render_document,
)
from controlplane.domain.integrity.invariant import InvariantViolation, Repair
from controlplane.domain.integrity.rows import IntegrityRows

__all__ = [
    "INVARIANTS",
    "REPAIRED",
    "IntegrityRows",
    "InvariantViolation",
    "Repair",
    "find_violations",
    "render_document",
]
