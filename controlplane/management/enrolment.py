"""Options of the commands that enroll cells."""

from argparse import ArgumentParser
from collections.abc import Iterable, Mapping
from typing import Any

from django.core.management.base import CommandError

from controlplane.spec import InvalidSpec
from controlplane.spec.limits import LimitedResources
from controlplane.spec.parsing import parse_part
from controlplane.spec.placing import FixedTags, NodeLabels, split_tags


def add_enrolment_options(parser: ArgumentParser) -> None:
    """Add the options that fix a new cell to its place."""
    parser.add_argument("--pool", help="name of its pool; default: default")
    parser.add_argument(
        "--label",
        action="append",
        metavar="node/NAME=VALUE",
        help="a label that only operators set; may be repeated",
    )
    parser.add_argument(
        "--max-capacity",
        metavar="cpu=8,memory=30Gi",
        help="maximum of each resource that the cell may offer; others are not limited",
    )
    parser.add_argument(
        "--tags",
        metavar="quiet,ssd?",
        help="its placement tags, of which those with ? are optional; '' for none;"
        " default: *, those of its own settings",
    )


def read_enrolment_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as arguments of `enroll_cell`. Raise CommandError."""
    labels, ceiling, tags = options["label"], options["max_capacity"], options["tags"]
    return {
        "pool": options["pool"],
        "node_labels": None if labels is None else _labels(labels),
        "max_capacity": None if ceiling is None else _amounts(ceiling),
        "fixed_tags": None if tags is None else _tags(tags),
    }


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.strip().partition("=")
    if not sign or not name:
        raise CommandError(f"{text!r} is not NAME=VALUE")
    return name, value


def _labels(texts: Iterable[str]) -> dict[str, str]:
    try:
        return parse_part(NodeLabels, dict(map(_pair, texts))).root
    except InvalidSpec as error:
        raise CommandError(f"--label: {error}") from error


def _amounts(text: str) -> dict[str, int]:
    given = dict(map(_pair, text.split(",")))
    document = {name: int(value) if _is_number(value) else value for name, value in given.items()}
    try:
        return parse_part(LimitedResources, document).amounts()
    except InvalidSpec as error:
        raise CommandError(f"--max-capacity: {error}") from error


def _tags(text: str) -> list[str]:
    try:
        return parse_part(FixedTags, split_tags(text)).root
    except InvalidSpec as error:
        raise CommandError(f"--tags: {error}") from error


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
