"""Render results: as a table, a wide table, JSON, YAML, names, or the values of a JSONPath."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import typer
import yaml
from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError
from rich.console import Group, RenderableType

from cellrun.display.listing import Listing
from cellrun.display.terminal import stdout
from cellrun.display.visible import print_line, visible, visible_json
from cellrun.errors import BadInput

FORMATS = "table|wide|json|yaml|name|jsonpath=EXPR"
_DRAWN = ("table", "wide")
_DOCUMENTS = ("json", "yaml", "name")
# What other commands take as the address of an object, the most specific first.
_NAMES = ("key", "id", "uid", "name")


@dataclass(frozen=True, slots=True)
class Output:
    """A form of results. `query` selects values of the document for jsonpath."""

    form: str
    query: JSONPath | None = None

    @property
    def is_document(self) -> bool:
        """Return whether standard output has only the document, in some form."""
        return self.form not in _DRAWN


TABLE = Output("table")


def read_output(text: str | Output) -> Output:
    """Return the form that `text` names. Raise BadInput."""
    if isinstance(text, Output):
        return text  # the default of an option
    form, sign, expression = text.partition("=")
    if form == "jsonpath":
        if not expression:
            raise BadInput("--output: jsonpath needs an expression, as in jsonpath=.id")
        return Output(form, _query(expression))
    if sign or form not in _DRAWN + _DOCUMENTS:
        raise BadInput(f"--output: {text!r} is none of {FORMATS.replace('|', ', ')}")
    return Output(form)


OutputOption = Annotated[
    Output,
    typer.Option(
        "-o",
        "--output",
        parser=read_output,
        metavar=FORMATS,
        show_default=False,
        help="How to print the result.",
    ),
]


def show(output: Output, document: Any, drawn: RenderableType) -> None:
    """Print a result: drawn for a person, or its document in the form that `output` names."""
    if output.is_document:
        show_document(output, document)
    else:
        stdout().print(fitted(drawn, is_wide=output.form == "wide"))


def show_document(output: Output, document: Any) -> None:
    """Print a document in the form that `output` names. Raise BadInput."""
    match output.form:
        case "yaml":
            print(_yaml(document), end="")
        case "name":
            for name in _names(document):
                print_line(name)
        case "jsonpath":
            for value in _values(output, document):
                is_text = isinstance(value, str)
                print_line(value if is_text else json.dumps(value, ensure_ascii=False))
        case _:
            print(visible_json(json.dumps(document, indent=2, ensure_ascii=False)))


def _query(expression: str) -> JSONPath:
    """Return a query of RFC 9535; braces and the `$` may be omitted, as in kubectl."""
    text = expression.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1].strip()
    if not text.startswith("$"):
        text = "$" + ("" if text.startswith((".", "[")) else ".") + text
    try:
        query = JSONPathEnvironment(strict=True).compile(text)
    except (JSONPathError, RecursionError) as fault:
        cause = str(fault).partition("\n")[0]
        raise BadInput(
            f"--output: {expression!r} is no JSONPath such as .id or [*].name: {cause}"
        ) from None
    assert isinstance(query, JSONPath)
    return query


def _values(output: Output, document: Any) -> list[Any]:
    assert output.query is not None
    try:
        return output.query.findall(document)
    except (JSONPathError, RecursionError) as fault:
        raise BadInput(f"--output: {str(fault).partition(chr(10))[0]}") from None


def _names(document: Any) -> list[str]:
    """Return the names of the objects of a document. Raise BadInput if they have none."""
    objects = document if isinstance(document, list) else [document]
    keys = [next((key for key in _NAMES if key in each), None) for each in objects]
    if None in keys:
        raise BadInput("--output: name: these results have no names; use json, yaml or jsonpath")
    return [str(each[key]) for each, key in zip(objects, keys, strict=True)]


def _yaml(document: Any) -> str:
    text = _dump(document, is_ascii=False)
    # Characters that act on a terminal need their escapes.
    return text if visible(text) == text else _dump(document, is_ascii=True)


def _dump(document: Any, *, is_ascii: bool) -> str:
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=not is_ascii, width=1000))


def fitted(drawn: RenderableType, *, is_wide: bool) -> RenderableType:
    """Return `drawn` with the wide columns of its tables only if `is_wide`."""
    if isinstance(drawn, Listing) and not is_wide:
        drawn.drop_wide()
    if isinstance(drawn, Group):
        inner: Iterable[RenderableType] = drawn.renderables
        return Group(*(fitted(each, is_wide=is_wide) for each in inner))
    return drawn
