"""Mutants that no test can tell from the original, each with the reason why.

Lines are compared without their indentation. An entry that fits no mutant any more fails the suite.
"""

from dataclasses import dataclass

from tests.mutants.making import Mutant


@dataclass(frozen=True, slots=True)
class Equivalent:
    """In the module `path`, the lines `old` becoming `new` changes nothing, because of `reason`."""

    path: str
    old: str
    new: str
    reason: str

    def fits(self, mutant: Mutant) -> bool:
        """Whether it speaks of this mutant."""
        return (self.path, self.old, self.new) == (mutant.path, mutant.old, mutant.new)


EQUIVALENT: tuple[Equivalent, ...] = ()
