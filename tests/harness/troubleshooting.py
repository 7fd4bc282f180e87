"""The entries of docs/troubleshooting.md, by heading, with the texts that they promise."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
_ENTRY = re.compile(
    r"^### (?P<heading>[^\n]+)\n\n(?:(?P<meaning>[^*\n].*?)\n\n)?"
    r"\* \*\*Symptom\*\*: (?P<symptom>.+?)\n\* \*\*Check\*\*: (?P<check>.+?)"
    r"\n\* \*\*Do\*\*: (?P<action>.+?)\n(?=\n#|\Z)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class TroubleEntry:
    """One entry, on one line each. `symptoms`: literal texts, with an ellipsis for what varies."""

    meaning: str
    symptoms: tuple[str, ...]
    check: str
    action: str


@cache
def entries(kind: str) -> Mapping[str, TroubleEntry]:
    """Return the entries of `Reason` or `Alert` by code, in the order of the page."""
    found = {}
    for match in _ENTRY.finditer(PAGE.read_text()):
        part = {name: " ".join((text or "").split()) for name, text in match.groupdict().items()}
        word, code = part["heading"].split()
        if word == kind:
            symptoms = tuple(re.findall("`([^`]+)`", part["symptom"]))
            code = code.strip("`")
            found[code] = TroubleEntry(part["meaning"], symptoms, part["check"], part["action"])
    return found


def is_symptom(symptom: str, text: str) -> bool:
    """Return whether a text is the symptom."""
    pattern = ".+".join(re.escape(part) for part in symptom.split("…"))
    return re.fullmatch(pattern, text, re.DOTALL) is not None
