"""A matrix of settings, expanded to one job for each combination of their values."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.errors import Problem, SpecError
from launcher.jobdir.paths import NAME_PATTERN
from launcher.spec.document import Node, put
from launcher.spec.fields import SHORT_PATHS
from launcher.spec.model import Spec

MAX_NAME = int(NAME_PATTERN.rpartition(",")[2].rstrip("}")) + 1


def expand(spec: Spec) -> list[tuple[str, Mapping[str, Any]]]:
    """List all combinations of a spec's variants, the last setting changing fastest; none if it has no variants.

    Returns:
        For each what its job's name has behind the group's, ``order-rr-seed-0``, and its settings by dotted path.
    """
    if not spec.variants:
        return []
    words = _short_words(list(spec.variants))
    labels = {path: _labels(values) for path, values in spec.variants.items()}
    found: list[tuple[str, Mapping[str, Any]]] = []
    for places in itertools.product(*(range(len(values)) for values in spec.variants.values())):
        chosen = list(zip(spec.variants, places, strict=True))
        suffix = "-".join(f"{words[path]}-{labels[path][place]}" for path, place in chosen)
        found.append((suffix, {path: spec.variants[path][place] for path, place in chosen}))
    return found


def _short_words(paths: Sequence[str]) -> dict[str, str]:
    """Shorten every path to its last word, unless two paths end alike."""
    last = [path.rpartition(".")[2] for path in paths]
    return {path: label(path.replace(".", "-") if last.count(word) > 1 else word) for path, word in zip(paths, last, strict=True)}


def _labels(values: Sequence[Any]) -> list[str]:
    """Make a text of every value; those that would look alike are numbered."""
    texts = [label(value) for value in values]
    return [f"{text}-{place}" if texts.count(text) > 1 else text for place, text in enumerate(texts)]


def label(value: Any) -> str:
    """Write a value as part of a job's name: letters, digits, dots and dashes."""
    text = json.dumps(value) if value is None or isinstance(value, bool | list | dict) else str(value)
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:24] or "x"


def expanded_trees(spec: Spec, root: Node, group: str) -> list[Node]:
    """Make the document of each combination, without its variants.

    Args:
        spec: what the document says.
        root: its tree.
        group: what the jobs' group is called.

    Raises:
        SpecError: if a job's name becomes too long, or a path leads nowhere.
    """
    return [_tree(spec, root, suffix, values, group) for suffix, values in expand(spec)]


def _tree(spec: Spec, root: Node, suffix: str, values: Mapping[str, Any], group: str) -> Node:
    name = f"{spec.name}-{suffix}"
    if len(name) > MAX_NAME:
        message = f"the job's name {name!r} is longer than {MAX_NAME} characters: give the file a shorter `name`"
        raise SpecError([spec.problem("variants", message)])
    settings = {**values, "name": name, "group": group, "variants": {}}
    for path, value in settings.items():
        place = _place(spec, path)
        root = put(root, path, node_of(value, place.source, place.line))
    return root


def _place(spec: Spec, path: str) -> Problem:
    """Find where the values of a setting stand: under its path, or under its short name."""
    short = next((name for name, full in SHORT_PATHS.items() if full == path), path)
    return min((spec.problem(f"variants.{name}", "") for name in (path, short)), key=lambda place: -(place.line or 0))


def node_of(value: Any, source: str, line: int | None) -> Node:
    """Turn plain data into a part of a document.  Text is quoted, so that it stays text."""
    if isinstance(value, dict):
        return Node({key: node_of(below, source, line) for key, below in value.items()}, line, source)
    if isinstance(value, list):
        return Node([node_of(below, source, line) for below in value], line, source)
    if isinstance(value, str):
        return Node(value, line, source)
    return Node(json.dumps(value), line, source, plain=True)
