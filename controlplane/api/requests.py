"""Read requests: a bounded body in JSON or YAML, and query parameters."""

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from io import BytesIO
from typing import IO, Any, ClassVar, TypeVar
from uuid import UUID

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from controlplane.api import charges
from controlplane.api.problems import BadQuery
from controlplane.contract.states import TaskState
from controlplane.domain.jobs.one_offs import Lifecycle
from controlplane.spec import Fault, InvalidSpec, read_document
from controlplane.spec.documents import Language
from controlplane.spec.fields import Model
from controlplane.spec.parsing import parse_part

M = TypeVar("M", bound=Model)

MAX_NUMBER = (1 << 63) - 1
MAX_PARAMETER_LENGTH = 1_000
MAX_ID_DIGITS = 18
_ID = re.compile(f"[1-9][0-9]{{0,{MAX_ID_DIGITS - 1}}}")


class JsonParser(BaseParser):
    """JSON without duplicate keys."""

    media_type = "application/json"
    language: ClassVar[Language] = "json"

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the document. Raise UnreadableDocument."""
        return read_document(stream.read(), self.language)


class YamlParser(JsonParser):
    """The subset of YAML that is equivalent to JSON."""

    media_type = "application/yaml"
    language = "yaml"


def _named_yaml(media_type: str) -> type[YamlParser]:
    return type("YamlParser", (YamlParser,), {"media_type": media_type})


PARSERS: tuple[type[JsonParser], ...] = (
    JsonParser,
    YamlParser,
    *map(_named_yaml, ("application/x-yaml", "text/yaml", "text/x-yaml")),
)


def read_bytes(request: Request) -> bytes:
    """Return the body. Raise RequestDataTooBig with the limit."""
    limit = settings.CELLRUN.max_body_bytes
    text = f"the request body must have at most {limit} bytes"
    try:
        body: bytes = request.body
    except RequestDataTooBig:
        raise RequestDataTooBig(text) from None
    if len(body) > limit:
        raise RequestDataTooBig(text)
    return body


def read_body(request: Request) -> Any:
    """Return the document in the body. Raise UnsupportedMediaType, UnreadableDocument."""
    # Not `request.data`, which treats a chunked body without Content-Length as empty.
    negotiator: Any = request.negotiator
    parser = negotiator.select_parser(request, request.parsers)
    if parser is None:
        given = (request.content_type or "").partition(";")[0].strip().lower()
        expected = " or ".join(parser.media_type for parser in PARSERS)
        raise UnsupportedMediaType(
            given, f"Content-Type is {given or 'missing'}; expected {expected}"
        )
    content = read_bytes(request)
    charges.charge_document(request, len(content), parser.media_type)
    return parser.parse(BytesIO(content))


def read_part(request: Request, model: type[M]) -> M:
    """Return the body as a `model`, by default an empty one. Raise InvalidSpec and as read_body."""
    if not read_bytes(request):
        return parse_part(model, {})
    return parse_part(model, read_body(request))


def check_named(field: str, value: str | None, *names: str) -> None:
    """Raise InvalidSpec if a body has a name other than the one in its URL."""
    if value is not None and value not in names:
        raise InvalidSpec([Fault(field, f"must be {names[0]}, as in the URL")])


class Parameters:
    """The query parameters. Raises BadQuery for a name that is not in `known`, or a bad value."""

    def __init__(self, request: Request, *known: str) -> None:
        self.request = request
        self._found = request.query_params
        for name in self._found:
            if name not in known:
                raise BadQuery(
                    name[:100], f"unknown parameter (known: {', '.join(known) or 'none'})"
                )

    def text(self, name: str) -> str | None:
        """Return a parameter that may occur once."""
        values = self.texts(name)
        if len(values) > 1:
            raise BadQuery(name, "must not occur more than once")
        return values[0] if values else None

    def texts(self, name: str, *, longest: int = MAX_PARAMETER_LENGTH) -> list[str]:
        """Return all non-empty values of a parameter, of at most `longest` characters each."""
        values = [value for value in self._found.getlist(name) if value]
        for value in values:
            if len(value) > longest or "\x00" in value:
                raise BadQuery(name, f"must have at most {longest} characters and no NUL")
        return values

    def number(self, name: str, *, least: int, most: int = MAX_NUMBER) -> int | None:
        """Return a whole number from `least` to `most`."""
        value = self.text(name)
        if value is None:
            return None
        is_number = value.isascii() and value.isdigit() and len(value) <= len(str(MAX_NUMBER))
        if not is_number or not least <= int(value) <= most:
            raise BadQuery(name, f"must be a whole number from {least} to {most}")
        return int(value)

    def ids(self, name: str, *, most: int) -> list[int] | None:
        """Return at most `most` ids, comma-separated or in repeated parameters; None: missing.

        Raise InvalidSpec with the first text that is no id.
        """
        values = self.texts(name, longest=most * (MAX_ID_DIGITS + 1))
        words = [word.strip() for value in values for word in value.split(",")]
        if not words:
            return None
        bad = next((word for word in words if not _ID.fullmatch(word)), None)
        if bad is not None:
            text = f"must be ids, separated by commas: {bad[:40]!r} is none"
            raise InvalidSpec([Fault(name, text)])
        if len(words) > most:
            raise InvalidSpec([Fault(name, f"must have at most {most} ids, not {len(words)}")])
        return [int(word) for word in words]

    def instant(self, name: str) -> datetime | None:
        """Return an instant with a time zone; None: missing."""
        text = self.text(name)
        if text is None:
            return None
        try:
            # The + of an offset is a space in a query that is not encoded.
            found = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
            found.astimezone(UTC)
        except (ValueError, OverflowError):
            found = None
        if found is None or found.tzinfo is None:
            raise BadQuery(name, "must be a time with a zone, such as 2031-05-04T12:00:00Z")
        return found

    def selection(self, name: str, known: Collection[str]) -> list[str] | None:
        """Return names among `known`, comma-separated; None: missing. Raise InvalidSpec."""
        words = [word.strip() for value in self.texts(name) for word in value.split(",")]
        unknown = next((word for word in words if word not in known), None)
        if unknown is not None:
            text = f"{unknown[:60]!r} is no field of this list (known: {', '.join(known)})"
            raise InvalidSpec([Fault(name, text)])
        return words or None

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return true or false; `default` if the parameter is missing."""
        value = self.choice(name, ("true", "false", "1", "0"))
        return default if value is None else value in ("true", "1")

    def choice(self, name: str, choices: Collection[str]) -> str | None:
        """Return one of `choices`, regardless of case."""
        value = self.text(name)
        if value is not None and value.lower() not in choices:
            raise BadQuery(name, f"must be one of {', '.join(choices)}")
        return value.lower() if value else None

    def states(self) -> list[TaskState]:
        """Return states by name, regardless of case; comma-separated or in repeated parameters."""
        return [TaskState[word] for word in self._words("state", TaskState.__members__)]

    def lifecycles(self) -> list[Lifecycle]:
        """Return lifecycles by name, in the format of `states`."""
        return [Lifecycle(word) for word in self._words("lifecycle", tuple(Lifecycle))]

    def _words(self, name: str, known: Collection[str]) -> list[str]:
        texts = [word for value in self.texts(name) for word in value.split(",") if word]
        words = [word.strip().upper() for word in texts]
        if not set(words) <= set(known):
            raise BadQuery(name, f"must be some of {', '.join(known)}")
        return words

    def claim(self, name: str = "claim") -> UUID | None:
        """Return the claim of the caller that resolves a task."""
        if name not in self._found:
            return None
        try:
            # An empty claim is invalid: without a claim, any caller could delete the task.
            return UUID(self.text(name) or "")
        except ValueError:
            raise BadQuery(name, "must be the claim that `resolving` returned") from None

    def labels(self, name: str = "label") -> dict[str, str]:
        """Return the labels in repeated parameters `key=value`."""
        labels = {}
        for value in self.texts(name):
            key, found, text = value.partition("=")
            if not found or not key:
                raise BadQuery(name, "must be key=value")
            labels[key] = text
        return labels
