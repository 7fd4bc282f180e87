"""Wildcards in paths of outputs, shared by control plane and cells.

As in POSIX file name expansion: `*`, `?` and `[…]` match within one part of a path, and never a dot
at its beginning. `**` as a whole part matches any number of folders. A backslash makes the next
character literal.
"""

import re
from dataclasses import dataclass

MAX_DEEP = 4  # `**` in one path: each multiplies the ways to match

_TOKEN = re.compile(
    r"\\(?P<escaped>.)"
    r"|\[(?P<negation>[!^]?+)(?P<set>\]?+(?:\[:[^]:]*:\]|\\.|[^]\\])*)\]"
    r"|(?P<wildcard>[*?])"
    r"|(?P<plain>[^[\\])",
    re.DOTALL,
)
_MEMBER = re.compile(r"\[:(?P<named>[^]:]*):\]|\\(?P<escaped>.)|(?P<plain>.)", re.DOTALL)
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r" \t",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r" \t-\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
_NOT_HIDDEN = r"(?!\.)"


@dataclass(frozen=True, slots=True)
class PathPattern:
    """The parts of a path from its first wildcard on; None is `**`.

    `only_folders`: the path ends with "/".
    """

    parts: tuple[re.Pattern[str] | None, ...]
    only_folders: bool

    def matches(self, path: str) -> bool:
        """Return whether the file at `path`, or a folder that contains it, matches."""
        names = path.split("/")
        positions = self._skip_deep({0})
        for depth, name in enumerate(names, 1):
            positions = self._skip_deep(self._step(positions, name))
            if len(self.parts) in positions and (depth < len(names) or not self.only_folders):
                return True
        return False

    def _step(self, positions: set[int], name: str) -> set[int]:
        """Return the positions in the pattern after one more part of the path."""
        after = set()
        for position in positions - {len(self.parts)}:
            part = self.parts[position]
            if part is None and not name.startswith("."):
                after.add(position)
            elif part is not None and part.fullmatch(name):
                after.add(position + 1)
        return after

    def _skip_deep(self, positions: set[int]) -> set[int]:
        """Add the positions after `**`, which may match no folder."""
        for position in tuple(positions):
            while position < len(self.parts) and self.parts[position] is None:
                position += 1
                positions.add(position)
        return positions


def split_path(path: str) -> tuple[str, PathPattern | None]:
    """Return the folder before the first wildcard of an absolute path, and the pattern below it.

    Without wildcards return the path, with backslashes resolved, and None. Raise ValueError.
    """
    parts = path.rstrip("/").split("/")
    fixed: list[str] = []
    for part in parts:
        literal = _literal(part)
        if literal is None:
            break
        fixed.append(literal)
    else:
        return "/".join(fixed) + "/" * path.endswith("/"), None
    wild = tuple(None if part == "**" else _compile(part) for part in parts[len(fixed) :])
    if wild.count(None) > MAX_DEEP:
        raise ValueError(f"must have ** at most {MAX_DEEP} times")
    return "/".join(fixed) or "/", PathPattern(wild, only_folders=path.endswith("/"))


def _tokens(part: str) -> list[re.Match[str]]:
    found: list[re.Match[str]] = []
    position = 0
    while position < len(part):
        token = _TOKEN.match(part, position)
        if token is None:
            what = "'[' without ']'" if part[position] == "[" else "a backslash at the end"
            raise ValueError(f"has {what} in {part!r}: a literal character follows a backslash")
        found.append(token)
        position = token.end()
    return found


def _literal(part: str) -> str | None:
    """Return a part without backslashes; None if it has a wildcard."""
    tokens = _tokens(part)
    if any(token["wildcard"] or token["set"] is not None for token in tokens):
        return None
    return "".join(token["escaped"] or token["plain"] for token in tokens)


def _compile(part: str) -> re.Pattern[str]:
    """Return the expression of one part; it matches in time proportional to a name's length."""
    tokens = _tokens(part)
    pieces = [""]  # between asterisks
    for token in tokens:
        if token["wildcard"] == "*":
            pieces.append("")
        elif token["wildcard"]:
            pieces[-1] += "."
        elif token["set"] is not None:
            pieces[-1] += f"[{'^' if token['negation'] else ''}{_members(token['set'])}]"
        else:
            pieces[-1] += re.escape(token["escaped"] or token["plain"])
    # The first match of a piece suffices, as no piece has a variable length.
    inner = "".join(f"(?>.*?{piece})" for piece in pieces[1:-1] if piece)
    text = pieces[0] if len(pieces) == 1 else f"{pieces[0]}{inner}.*{pieces[-1]}"
    first = tokens[0]["escaped"] or tokens[0]["plain"]
    return re.compile(text if first == "." else _NOT_HIDDEN + text, re.DOTALL)


def _members(text: str) -> str:
    """Return what stands between the brackets of a regular expression for a POSIX set."""
    tokens = list(_MEMBER.finditer(text))
    members = ""
    while tokens:
        token = tokens.pop(0)
        if token["named"] is not None:
            if token["named"] not in _CLASSES:
                raise ValueError(f"has an unknown class [:{token['named']}:]")
            members += _CLASSES[token["named"]]
            continue
        first = last = token["escaped"] or token["plain"]
        if len(tokens) >= 2 and tokens[0]["plain"] == "-" and tokens[1]["named"] is None:
            last = tokens[1]["escaped"] or tokens[1]["plain"]
            del tokens[:2]
        if first > last:
            raise ValueError(f"has the range {first}-{last}, which is empty")
        members += re.escape(first) + (f"-{re.escape(last)}" if last != first else "")
    return members
