"""Findings in plans that are known and harmless, each with the reason."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlanReview:
    """A reason for findings of one kind in a part of plans of statements with some words."""

    kind: str
    part: str
    words: str
    reason: str


REVIEWS: tuple[PlanReview, ...] = ()


def find_review(kind: str, part: str, text: str) -> str | None:
    """Return why a finding is harmless; None if that is not known."""
    for one in REVIEWS:
        if one.kind == kind and part.startswith(one.part) and one.words in text:
            return one.reason
    return None
