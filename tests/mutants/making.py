"""Makes the mutants of a module: the library's and ours, each of them once, in a fixed order."""

import ast
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

from tests.mutants.operators import OPERATORS, Enums, Module, enums_in, enums_of

DOMAIN = "controlplane/domain"
_KNOWN = ("controlplane/contract", DOMAIN)

_COMPARISONS = (
    ("Lt", "LtE"), ("Lt", "GtE"), ("LtE", "Lt"), ("LtE", "Gt"),
    ("Gt", "GtE"), ("Gt", "LtE"), ("GtE", "Gt"), ("GtE", "Lt"),
    ("Eq", "NotEq"), ("NotEq", "Eq"), ("Is", "IsNot"), ("IsNot", "Is"),
)  # fmt: skip
_ARITHMETIC = (
    ("Add", "Sub"), ("Sub", "Add"), ("Mul", "Div"), ("Div", "Mul"), ("FloorDiv", "Mul"),
    ("Mod", "Mul"), ("Pow", "Mul"), ("BitOr", "BitAnd"), ("BitAnd", "BitOr"),
)  # fmt: skip
# Of the library's operators one for each kind of mistake. Left out: those that ours contain (`and`
# for `or`, `not`), those that nearly every test sees (`+` as `**`), decorators.
CHOSEN = (
    *(f"core/ReplaceComparisonOperator_{old}_{new}" for old, new in _COMPARISONS),
    *(f"core/ReplaceBinaryOperator_{old}_{new}" for old, new in _ARITHMETIC),
    "core/ReplaceUnaryOperator_USub_UAdd",
    "core/ReplaceUnaryOperator_Delete_Not",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceContinueWithBreak",
    "core/ExceptionReplacer",
    "core/NumberReplacer",
    "core/ZeroIterationForLoop",
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one mistake. `source`: its whole text."""

    path: str
    line: int
    operator: str
    source: str
    old: str
    new: str

    @property
    def module(self) -> str:
        """The dotted name of its module."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def __str__(self) -> str:
        """Where it is and what it changes, as a diff."""
        lines = [f"{self.path}:{self.line} ({self.operator})"]
        lines += [f"  - {line}" for line in self.old.splitlines()]
        lines += [f"  + {line}" for line in self.new.splitlines()]
        return "\n".join(lines)


def paths_in(tree: Path, *, below: str = DOMAIN) -> list[str]:
    """Return the modules below a folder, by their paths in `tree`, without package files."""
    found = sorted((tree / below).rglob("*.py"))
    return [str(path.relative_to(tree)) for path in found if path.name != "__init__.py"]


def known_enums(tree: Path) -> Enums:
    """All enums of the domain and the contract."""
    known: dict[str, Sequence[str]] = {}
    for folder in _KNOWN:
        for path in paths_in(tree, below=folder):
            known |= enums_in(ast.parse((tree / path).read_text()))
    return known


def mutants_of(tree: Path, path: str, known: Enums) -> list[Mutant]:
    """All mutants of one module by line, without those that Python would not read."""
    source = (tree / path).read_text()
    lines = source.splitlines(keepends=True)
    parsed = ast.parse(source)
    enums = enums_of(parsed, known)
    found = []
    begin = 0
    # Statement by statement: what is parsed again for each mutant is short.
    for statement in parsed.body:
        end = statement.end_lineno or begin
        before, text, after = map("".join, (lines[:begin], lines[begin:end], lines[end:]))
        for operator, mutated in _mutations(Module(text.encode(), ast.parse(text), enums)):
            found.append(_mutant(path, operator, before, (text, mutated), after))
        begin = end
    return sorted(found, key=lambda mutant: (mutant.line, mutant.operator, mutant.new))


def _mutations(module: Module) -> Iterator[tuple[str, str]]:
    """Each meaning once, by the operator and the mutated text."""
    seen = {ast.dump(module.tree)}
    signatures = _signatures(module.tree)
    for operator, mutated in [*_of_the_library(module), *_of_ours(module)]:
        try:
            changed = ast.parse(mutated)
        except SyntaxError:
            continue
        meaning = ast.dump(changed)
        # The library takes the bare `*` of a signature for a product.
        if meaning not in seen and _signatures(changed) == signatures:
            seen.add(meaning)
            yield operator, mutated


def _signatures(tree: ast.Module) -> list[tuple[int, int, int]]:
    return [
        (len(node.posonlyargs), len(node.args), len(node.kwonlyargs))
        for node in ast.walk(tree)
        if isinstance(node, ast.arguments)
    ]


def _of_ours(module: Module) -> Iterator[tuple[str, str]]:
    silent = module.silent_spans()
    for operator in OPERATORS:
        for change in operator(module):
            if not _is_inside(silent, change.start, change.end):
                text = module.text[: change.start] + change.new.encode() + module.text[change.end :]
                yield change.operator, text.decode()


def _of_the_library(module: Module) -> Iterator[tuple[str, str]]:
    source = module.text.decode()
    lines = source.splitlines(keepends=True)
    silent = module.silent_spans()

    def offset(position: tuple[int, int]) -> int:
        line, column = position
        return module.offset(line) + len(lines[line - 1][:column].encode())

    nodes = list(ast_nodes(get_ast(source)))
    for name in CHOSEN:
        operator = get_operator(name)()
        places = [place for node in nodes for place in operator.mutation_positions(node)]
        for occurrence, (start, end) in enumerate(places):
            if not _is_inside(silent, offset(start), offset(end)):
                mutated = mutate_code(source, operator, occurrence)
                if mutated is not None:
                    yield name.removeprefix("core/"), mutated


def _is_inside(spans: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    return any(first <= start and end <= last for first, last in spans)


def _mutant(path: str, operator: str, before: str, texts: tuple[str, str], after: str) -> Mutant:
    old, new = (text.splitlines() for text in texts)
    changed = [
        step
        for step in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        if step[0] != "equal"
    ]
    first, last = changed[0], changed[-1]
    return Mutant(
        path=path,
        line=before.count("\n") + first[1] + 1,
        operator=operator,
        source=before + texts[1] + after,
        old="\n".join(line.strip() for line in old[first[1] : last[2]]),
        new="\n".join(line.strip() for line in new[first[3] : last[4]]),
    )
