"""A matrix of settings, expanded to one job for each combination of their values."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.errors import Problem, SpecError
from launcher.jobdir.paths import NAME_PATTERN
from launcher.spec.document import Node
from launcher.spec.model import Spec
from launcher.spec.overrides import put
from launcher.spec.variant_names import SHORT_PATHS, label

MAX_NAME = int(NAME_PATTERN.rpartition(",")[2].rstrip("}")) + 1


@dataclass(frozen=True)
class Variant:
    """One combination."""

    suffix: str
    """What its job's name has behind the group's: ``order-rr-seed-0``."""
    values: Mapping[str, Any]
    """The settings by dotted path."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings as ``--set`` texts, for people."""
        return tuple(f"{path}={value if isinstance(value, str) else json.dumps(value)}" for path, value in self.values.items())


def expand(spec: Spec) -> list[Variant]:
    """All combinations of a spec's variants, the last setting changing fastest; none where it has no variants."""
    if not spec.variants:
        return []
    words = _short_words(list(spec.variants))
    labels = {path: _labels(values) for path, values in spec.variants.items()}
    ranges = [range(len(values)) for values in spec.variants.values()]
    found = []
    for places in itertools.product(*ranges):
        chosen = list(zip(spec.variants, places, strict=True))
        suffix = "-".join(f"{words[path]}-{labels[path][place]}" for path, place in chosen)
        found.append(Variant(suffix, {path: spec.variants[path][place] for path, place in chosen}))
    return found


def _short_words(paths: Sequence[str]) -> dict[str, str]:
    """The last word of every path, or all of it where two paths end alike."""
    last = [path.rpartition(".")[2] for path in paths]
    return {path: label(path.replace(".", "-") if last.count(word) > 1 else word) for path, word in zip(paths, last, strict=True)}


def _labels(values: Sequence[Any]) -> list[str]:
    """A text for every value; those that would look alike are numbered."""
    texts = [label(value) for value in values]
    return [f"{text}-{place}" if texts.count(text) > 1 else text for place, text in enumerate(texts)]


def expanded_trees(spec: Spec, root: Node, group: str) -> list[Node]:
    """The document once for each combination, without its variants.

    Args:
        spec: what the document says.
        root: its tree.
        group: what the jobs' group is called.

    Raises:
        SpecError: where a job's name becomes too long, or a path leads nowhere.
    """
    return [_tree(spec, root, variant, group) for variant in expand(spec)]


def _tree(spec: Spec, root: Node, variant: Variant, group: str) -> Node:
    name = f"{spec.name}-{variant.suffix}"
    if len(name) > MAX_NAME:
        message = f"the job's name {name!r} is longer than {MAX_NAME} characters: give the file a shorter `name`"
        raise SpecError([spec.problem("variants", message)])
    settings = {**variant.values, "name": name, "group": group, "variants": {}}
    for path, value in settings.items():
        place = _place(spec, path)
        root = put(root, path, node_of(value, place.source, place.line))
    return root


def _place(spec: Spec, path: str) -> Problem:
    """Where the values of a setting stand: under its path, or under its short name."""
    short = next((name for name, full in SHORT_PATHS.items() if full == path), path)
    return min((spec.problem(f"variants.{name}", "") for name in (path, short)), key=lambda place: -(place.line or 0))


def node_of(value: Any, source: str, line: int | None) -> Node:
    """Plain data as a part of a document.  Text is quoted, so that it stays text."""
    if isinstance(value, dict):
        return Node({key: node_of(below, source, line) for key, below in value.items()}, line, source)
    if isinstance(value, list):
        return Node([node_of(below, source, line) for below in value], line, source)
    if isinstance(value, str):
        return Node(value, line, source)
    return Node(json.dumps(value), line, source, plain=True)
