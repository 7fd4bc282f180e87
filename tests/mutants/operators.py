"""Operators for what rules are made of: members of enums, tables, keywords, conditions, cases.

Each yields the places it would change in a module and the text that would stand there. They work on
Python's own syntax tree, hence also inside `match`, which the library's parser does not read.
"""

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Enums = Mapping[str, Sequence[str]]
"""The members of an enum by the name that a module knows it by."""


@dataclass(frozen=True, slots=True)
class Change:
    """The bytes from `start` to `end` become `new`."""

    operator: str
    start: int
    end: int
    new: str


@dataclass(frozen=True, slots=True)
class Module:
    """A module as text and as a tree; `enums`: those it can name."""

    text: bytes
    tree: ast.Module
    enums: Enums

    def span(self, node: ast.expr | ast.stmt | ast.keyword | ast.pattern) -> tuple[int, int]:
        """From where to where in the text a node stands, in bytes."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.offset(node.lineno) + node.col_offset,
            self.offset(node.end_lineno) + node.end_col_offset,
        )

    def offset(self, line: int) -> int:
        """Where `line` begins, in bytes; lines count from 1."""
        return sum(len(text) for text in self.text.splitlines(keepends=True)[: line - 1])

    def nodes(self) -> Iterator[ast.AST]:
        """All nodes of code, but those inside f-strings, whose positions Python 3.11 gets wrong."""
        waiting: list[ast.AST] = [self.tree]
        while waiting:
            node = waiting.pop()
            yield node
            if not isinstance(node, ast.JoinedStr):
                waiting.extend(ast.iter_child_nodes(node))

    def silent_spans(self) -> list[tuple[int, int]]:
        """Where no mutant can be seen or is of interest: annotations, decorators, `zip(strict=)`.

        `strict` asserts what the caller ensures; it decides nothing.
        """
        silent: list[ast.expr | ast.keyword] = []
        for node in ast.walk(self.tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    silent += [*node.decorator_list, *filter(None, [node.returns])]
                case ast.ClassDef():
                    silent += node.decorator_list
                case ast.arg(annotation=ast.expr() as annotation):
                    silent.append(annotation)
                case ast.AnnAssign():
                    silent.append(node.annotation)
                case ast.Call(func=ast.Name(id="zip")):
                    silent += node.keywords
                case _:
                    pass
        return [self.span(node) for node in silent]


def enums_in(tree: ast.Module) -> dict[str, list[str]]:
    """The enums that a module defines, with their members in order."""
    return {
        node.name: [
            target.id
            for line in node.body
            if isinstance(line, ast.Assign)
            for target in line.targets
            if isinstance(target, ast.Name)
        ]
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id.endswith("Enum") for base in node.bases)
    }


def enums_of(tree: ast.Module, known: Enums) -> dict[str, Sequence[str]]:
    """The known enums that a module can name, by the name they have there."""
    found: dict[str, Sequence[str]] = dict(enums_in(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in known:
                    found[alias.asname or alias.name] = known[alias.name]
    return found


def other_member(module: Module) -> Iterator[Change]:
    """`S.FAILED` becomes the member that follows it in its enum."""
    for node in module.nodes():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            members = module.enums.get(node.value.id, ())
            if node.attr in members and len(members) > 1:
                following = members[(members.index(node.attr) + 1) % len(members)]
                yield Change("other member", *module.span(node), f"{node.value.id}.{following}")


def less_elements(module: Module) -> Iterator[Change]:
    """A list, tuple, set or mapping that is written out has one element less.

    Tuples that are indices, or that are returned or unpacked at once, are no tables: left out.
    """
    left_out: set[int] = set()
    for node in module.nodes():
        match node:
            case ast.Subscript(slice=ast.Tuple() as pair) | ast.Return(value=ast.Tuple() as pair):
                left_out.add(id(pair))
            case ast.Assign(targets=[ast.Tuple()], value=ast.Tuple() as pair):
                left_out.add(id(pair))
    for node in module.nodes():
        if isinstance(node, ast.Dict):
            places = [
                (module.span(key or value)[0], module.span(value)[1])
                for key, value in zip(node.keys, node.values, strict=True)
            ]
            yield from _less(module, "element less", node, places, _without_item)
        elif isinstance(node, ast.List | ast.Tuple | ast.Set) and id(node) not in left_out:
            if isinstance(getattr(node, "ctx", None), ast.Store):
                continue
            places = [module.span(element) for element in node.elts]
            yield from _less(module, "element less", node, places, _without_element)


def less_keywords(module: Module) -> Iterator[Change]:
    """A call leaves one keyword argument to its default."""
    for node in module.nodes():
        if isinstance(node, ast.Call) and node.keywords and ast.unparse(node.func) != "zip":
            arguments: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
            places = [module.span(argument) for argument in arguments]
            named = [place for place, it in zip(places, arguments, strict=True) if _is_named(it)]
            changes = _less(module, "keyword less", node, places, _without_argument)
            yield from (
                change for change, place in zip(changes, places, strict=True) if place in named
            )


def _is_named(argument: ast.expr | ast.keyword) -> bool:
    return isinstance(argument, ast.keyword) and argument.arg is not None


def _less(
    module: Module,
    operator: str,
    node: ast.expr,
    places: Sequence[tuple[int, int]],
    without: Callable[[ast.expr, int], ast.expr],
) -> Iterator[Change]:
    """The text of `node` without each of `places`; as Python writes it where a comma decides."""
    start, end = module.span(node)
    for index, (first, last) in enumerate(places):
        if len(places) < 3:
            yield Change(operator, start, end, ast.unparse(without(copy.deepcopy(node), index)))
        elif index + 1 < len(places):
            yield Change(operator, first, places[index + 1][0], "")
        else:
            yield Change(operator, places[index - 1][1], last, "")


def _without_item(node: ast.expr, index: int) -> ast.expr:
    assert isinstance(node, ast.Dict)
    del node.keys[index], node.values[index]
    return node


def _without_element(node: ast.expr, index: int) -> ast.expr:
    assert isinstance(node, ast.List | ast.Tuple | ast.Set)
    del node.elts[index]
    return node if node.elts or not isinstance(node, ast.Set) else ast.parse("set()").body[0].value  # type: ignore[attr-defined]


def _without_argument(node: ast.expr, index: int) -> ast.expr:
    assert isinstance(node, ast.Call)
    del node.keywords[index - len(node.args)]
    return node


def less_operands(module: Module) -> Iterator[Change]:
    """`a and b` loses one of its operands, and so does `a or b`.

    Tests that distinguish these also distinguish `and` from `or`.
    """
    for node in module.nodes():
        if isinstance(node, ast.BoolOp):
            for index in range(len(node.values)):
                left = [value for at, value in enumerate(node.values) if at != index]
                rest = left[0] if len(left) == 1 else ast.BoolOp(op=node.op, values=left)
                yield Change("operand less", *module.span(node), f"({ast.unparse(rest)})")


def constant_conditions(module: Module) -> Iterator[Change]:
    """A condition becomes constant, True or False."""
    for node in module.nodes():
        tests: list[ast.expr] = []
        if isinstance(node, ast.If | ast.IfExp):
            tests = [node.test]
        elif isinstance(node, ast.comprehension):
            tests = node.ifs
        elif isinstance(node, ast.match_case) and node.guard is not None:
            tests = [node.guard]
        for test in tests:
            for answer in ("True", "False"):
                yield Change("condition", *module.span(test), answer)


def other_membership(module: Module) -> Iterator[Change]:
    """`in` becomes `not in`, and the other way round."""
    for node in module.nodes():
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            word = "not in" if isinstance(node.ops[0], ast.In) else "in"
            before, after = module.span(node.left)[1], module.span(node.comparators[0])[0]
            yield Change("membership", before, after, f" {word} ")


def less_statements(module: Module) -> Iterator[Change]:
    """A call for its effect, an error, or an assignment in place is left out."""
    for node in module.nodes():
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if is_call or isinstance(node, ast.Raise | ast.AugAssign):
            assert isinstance(node, ast.stmt)
            yield Change("statement less", *module.span(node), "pass")


def less_cases(module: Module) -> Iterator[Change]:
    """A `match` has one case less."""
    for node in module.nodes():
        if isinstance(node, ast.Match) and len(node.cases) > 1:
            for case in node.cases:
                start = module.offset(case.pattern.lineno)
                yield Change("case less", start, module.span(case.body[-1])[1], "")


_OTHER_BUILTINS = {"min": "max", "max": "min", "any": "all", "all": "any"}


def other_builtins(module: Module) -> Iterator[Change]:
    """`min` becomes `max`, `any` becomes `all`, and the other way round."""
    for node in module.nodes():
        if isinstance(node, ast.Name) and node.id in _OTHER_BUILTINS:
            yield Change("builtin", *module.span(node), _OTHER_BUILTINS[node.id])


OPERATORS: tuple[Callable[[Module], Iterator[Change]], ...] = (
    other_member,
    less_elements,
    less_keywords,
    less_operands,
    constant_conditions,
    other_membership,
    less_statements,
    less_cases,
    other_builtins,
)
