"""No state of a process is kept in modules or classes: an object that a tick owns holds it."""

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.architecture.source import Source, sources

LAYERS = tuple(f"controlplane/{layer}/" for layer in ("commands", "queries", "ticks", "inbox"))

KEPT_BY_REASON = {
    "controlplane/commands/hooks/registry.py:_calls": "counts hook threads of this process",
    "controlplane/commands/jobs/cap.py:_bounds": "bounds of users, which a restart may forget",
    "controlplane/commands/state/attempt_uids.py:_noise": "a simulation replaces it by `use`",
}
"""`path:name` -> why a module may keep it."""

MUTABLE_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTABLE_TYPES = {
    *("list", "dict", "set", "bytearray", "sorted"),
    *("defaultdict", "Counter", "deque", "OrderedDict", "ChainMap"),
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "SimpleNamespace", "local"),
}
IMMUTABLE_BASES = {"NamedTuple", "Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def ours() -> list[Source]:
    return [source for source in sources() if source.path.startswith(LAYERS)]


def test_no_module_or_class_holds_mutable_state() -> None:
    kept = [
        f"{source.path}:{name} is a mutable {where} attribute"
        for source in ours()
        for where, name, value in bindings(source.tree)
        if is_mutable(value, source.tree) and f"{source.path}:{name}" not in KEPT_BY_REASON
    ]
    assert kept == []


def test_no_function_writes_a_name_or_an_attribute_of_a_module_or_class() -> None:
    writers = [
        f"{source.path}:{name} is written by a function"
        for source in ours()
        for name in written_names(source.tree)
        if f"{source.path}:{name}" not in KEPT_BY_REASON
    ]
    assert writers == []


def test_no_closure_uses_nonlocal() -> None:
    closures = [
        f"{source.path}:{node.lineno} uses nonlocal; return the value instead"
        for source in ours()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Nonlocal)
    ]
    assert closures == []


def test_every_exception_is_still_needed_and_has_a_reason() -> None:
    found = {
        f"{source.path}:{name}"
        for source in ours()
        for _, name, value in bindings(source.tree)
        if is_mutable(value, source.tree)
    }
    found |= {f"{source.path}:{name}" for source in ours() for name in written_names(source.tree)}
    assert [name for name in KEPT_BY_REASON if name not in found] == []
    assert [name for name, reason in KEPT_BY_REASON.items() if len(reason) < 10] == []


@pytest.mark.parametrize(
    "text",
    [
        "_seen = {}",
        "_seen: dict[str, int] = {}",
        "_seen = [1] + [2]",
        "_seen = first, *rest, []",
        "_seen = dict[str, int]()",
        "_seen = collections.defaultdict(list)",
        "_seen = {name for name in NAMES}",
        "if DEBUG:\n    _seen = []",
        "class Reached:\n    seen = []",
        "class Reached:\n    class Inner:\n        seen: list[int] = list()",
        "class Clerk:\n    def __init__(self): pass\n\n_clerk = Clerk()",
        "from controlplane.commands.state.tick_alerts import TickAlerts\n_seen = TickAlerts()",
        "from controlplane.inbox import floods\n_seen = floods.FloodMeter()",
    ],
)
def test_mutable_value_is_detected(text: str) -> None:
    tree = ast.parse(text)
    assert [value for *_, value in bindings(tree) if is_mutable(value, tree)]


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    global _seen\n    _seen = 1",
        "class Reached:\n    job_id = 0\n\ndef f():\n    Reached.job_id = 1",
        "class Reached:\n    job_id = 0\n\ndef f():\n    Reached.job_id += 1",
        "class Reached:\n    @classmethod\n    def f(cls):\n        cls.job_id = 1",
        "class Reached:\n    def f(self):\n        type(self).job_id = 1",
        "class Reached:\n    def f(self):\n        self.__class__.job_id = 1",
        "class Reached:\n    pass\n\ndef f():\n    setattr(Reached, 'job_id', 1)",
        "from a import purge\n\ndef f():\n    purge.job_id, rest = 1, 2",
        "def f():\n    f.job_id = 1",
    ],
)
def test_a_write_that_outlives_its_function_is_found(text: str) -> None:
    assert list(written_names(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "NAMES = ('a', 'b')\nKNOWN = frozenset({'a'})\nTEXTS = MappingProxyType({'a': 1})",
        "@dataclass\nclass Counts:\n    seen: list[int] = field(default_factory=list)",
        "@dataclass(frozen=True)\nclass Rule:\n    name: str\n\nRULES = (Rule('a'),)",
        "class Clerk:\n    def __init__(self):\n        self.seen = []",
        "from a import purge\n\ndef f(purge):\n    purge.job_id = 1",
        "def f():\n    seen = {}\n    seen['a'] = 1",
    ],
)
def test_immutable_or_owned_value_is_not_reported(text: str) -> None:
    tree = ast.parse(text)
    assert not [value for *_, value in bindings(tree) if is_mutable(value, tree)]
    assert not list(written_names(tree))


def bindings(tree: ast.Module) -> Iterator[tuple[str, str, ast.expr]]:
    """Yield where ("module" or "class"), name and value of each assignment outside of functions."""
    blocks: list[tuple[str, ast.AST]] = [("module", tree)]
    while blocks:
        where, block = blocks.pop()
        for node in ast.iter_child_nodes(block):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    yield where, ast.unparse(target), node.value
            elif isinstance(node, ast.ClassDef):
                blocks.append(("class", node))
            elif isinstance(node, ast.stmt | ast.ExceptHandler) and not isinstance(node, Function):
                blocks.append((where, node))


def is_mutable(value: ast.expr, tree: ast.Module) -> bool:
    """Return whether `value`, of a module with the syntax `tree`, is an object that can change."""
    match value:
        case ast.Tuple(elts=parts) | ast.BoolOp(values=parts):
            return any(is_mutable(part, tree) for part in parts)
        case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
            return is_mutable(left, tree) or is_mutable(right, tree)
        case ast.Call(func=ast.Subscript(value=function)) | ast.Call(func=function):
            return last_name(function) in MUTABLE_TYPES or is_own_mutable(function, tree)
    return isinstance(value, MUTABLE_DISPLAYS)


def is_own_mutable(function: ast.expr, tree: ast.Module) -> bool:
    """Return whether a call of `function` creates an object of a class of ours that can change."""
    found = find_class(function, tree)
    return found is not None and not is_immutable(found)


def is_immutable(node: ast.ClassDef) -> bool:
    """Return whether the class is an enumeration, a named tuple or a frozen record of such."""
    if IMMUTABLE_BASES & {last_name(base) for base in node.bases}:
        return True
    is_frozen = any(
        isinstance(decorator, ast.Call)
        and last_name(decorator.func) == "dataclass"
        and any(it.arg == "frozen" and ast.unparse(it.value) == "True" for it in decorator.keywords)
        for decorator in node.decorator_list
    )
    factories = [
        keyword
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.value, ast.Call)
        for keyword in item.value.keywords
        if keyword.arg == "default_factory"
    ]
    return is_frozen and not factories


def find_class(function: ast.expr, tree: ast.Module) -> ast.ClassDef | None:
    """Return the class of ours that `function` names in the module `tree`; None if it is none."""
    origins = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    if isinstance(function, ast.Name):
        if function.id in origins:
            module, name = origins[function.id]
            return classes_of(module).get(name)
        return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}.get(
            function.id
        )
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        module, name = origins.get(function.value.id, ("", ""))
        return classes_of(f"{module}.{name}").get(function.attr)
    return None


@cache
def classes_of(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes that a module of ours defines, by name."""
    path = module.replace(".", "/")
    return {
        node.name: node
        for source in sources()
        if source.path in (f"{path}.py", f"{path}/__init__.py")
        for node in source.tree.body
        if isinstance(node, ast.ClassDef)
    }


def written_names(tree: ast.Module) -> Iterator[str]:
    """Yield what functions write of modules, classes and functions: it outlives their calls."""
    lasting = {name for node in tree.body for name in names_of(node)}
    for function in ast.walk(tree):
        if not isinstance(function, Function):
            continue
        names = lasting - local_names(function)
        for node in ast.walk(function):
            match node:
                case ast.Global():
                    yield from node.names
                case ast.Attribute(value=owner, ctx=ast.Store() | ast.Del()):
                    if is_lasting(owner, names):
                        yield ast.unparse(node)
                case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, *_]):
                    if is_lasting(owner, names):
                        yield ast.unparse(owner)


def local_names(function: Function) -> set[str]:
    """Return the arguments and variables of the function."""
    return {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)} | {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def is_lasting(owner: ast.expr, lasting: set[str]) -> bool:
    """Return whether `owner` is a module, a class or a function, and no object of one call."""
    match owner:
        case ast.Name(id=name):
            return name == "cls" or name in lasting
        case ast.Call(func=ast.Name(id="type")) | ast.Attribute(attr="__class__"):
            return True
        case ast.Attribute(value=inner):
            return is_lasting(inner, lasting)
    return False


def names_of(node: ast.stmt) -> list[str]:
    """Return the names that a definition or an import binds."""
    if isinstance(node, ast.ClassDef | Function):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    return []


def last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name; empty if it is none."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
