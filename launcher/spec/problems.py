"""Pydantic's findings as `Problem`s: where they stand in the document, and what would be right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from launcher.errors import Problem
from launcher.host.text import short
from launcher.spec.document import Node
from launcher.spec.model import Spec, model_in

_TEXT_INSTEAD = {
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of settings",
    "model_attributes_type": "must be a mapping of settings",
    "missing": "is missing",
    "too_short": "must not be empty",
}
_PLAIN_TYPES = ("bool_type", "int_type", "float_type")
_TRUE, _FALSE = ("on", "yes", "y", "1", "true"), ("off", "no", "n", "0", "false")
_SPELLINGS = {
    10: r"[-+]?[0-9]{1,15}(_[0-9]{1,15}){1,5}",
    16: r"[-+]?0x[0-9a-f]{1,12}",
    8: r"[-+]?0o[0-7]{1,15}",
    2: r"[-+]?0b[01]{1,40}",
}
"""Spellings of whole numbers that only some YAML readers know, by base."""
_HIDDEN = ("env", "secrets", "command")
"""Settings whose values errors do not repeat: a secret may have been put there by mistake."""


def describe(error: ValidationError, root: Node) -> list[Problem]:
    """Make one `Problem` of each finding, in the order of the document.

    Args:
        error: what validating the document's data raised.
        root: the document's tree.
    """
    problems = [_problem(item, root) for item in error.errors(include_url=False)]
    return sorted(problems, key=lambda problem: problem.line or 0)


def _problem(item: Mapping[str, Any], root: Node) -> Problem:
    keys = [str(key) for key in item["loc"] if key != "[key]"]
    if item["type"] == "at_key":
        keys += _way(_locate(root, keys), item["ctx"]["key"])
    node = _locate(root, keys)
    path = ".".join(keys)
    if item["type"] == "extra_forbidden":
        return Problem(node.source, node.line, path, _unknown_key(keys))
    line = None if node is root else node.line
    return Problem(node.source, line, path, _message(item, keys))


def _way(node: Node, key: str) -> list[str]:
    """Split a dotted key as the document has it: not at all, or into sections."""
    return [key] if isinstance(node.content, dict) and key in node.content else key.split(".")


def _locate(root: Node, keys: Sequence[str]) -> Node:
    """Find the deepest node of the document on the way to a setting."""
    node = root
    for key in keys:
        if isinstance(node.content, dict) and key in node.content:
            node = node.content[key]
        elif isinstance(node.content, list) and key.isdigit() and int(key) < len(node.content):
            node = node.content[int(key)]
        else:
            break
    return node


def _unknown_key(keys: Sequence[str]) -> str:
    valid = valid_keys(keys[:-1])
    near = difflib.get_close_matches(keys[-1], valid, n=1)
    if near:
        return f"unknown key; did you mean {near[0]!r}?"
    return f"unknown key; valid here: {', '.join(valid)}"


def valid_keys(path: Sequence[str]) -> tuple[str, ...]:
    """List the names that a section may hold.

    Args:
        path: keys that lead to the section; empty for the document itself.
    """
    model: type[BaseModel] = Spec
    for key in path:
        below = model_in(model.model_fields[key].annotation)
        assert below is not None, "unknown keys are found in sections only"
        model = below
    return tuple(model.model_fields)


def _children(node: Node) -> list[tuple[str, Node]]:
    if isinstance(node.content, dict):
        return list(node.content.items())
    return [(str(index), child) for index, child in enumerate(node.content)] if isinstance(node.content, list) else []


def places_of(root: Node) -> dict[str, tuple[str, int | None]]:
    """Map dotted paths of everything in a document to file or option and line.  Recursion is bounded by the document's depth."""
    places: dict[str, tuple[str, int | None]] = {}

    def visit(node: Node, path: str) -> None:
        if path:
            places[path] = (node.source, node.line)
        for key, child in _children(node):
            visit(child, f"{path}.{key}" if path else key)

    visit(root, "")
    return places


def _message(item: Mapping[str, Any], keys: Sequence[str]) -> str:
    if item["type"] == "at_key":
        return str(item["ctx"]["message"])
    if item["type"] == "value_error":
        text = str(item["ctx"]["error"])
        return text + _remedy(item.get("input")) if text.startswith("must be a whole number") else text
    if item["type"] == "literal_error":
        text = f"must be one of {item['ctx']['expected'].replace(chr(39), '')}"
    else:
        text = _TEXT_INSTEAD.get(item["type"], item["msg"].replace("Input should", "must"))
    value = item.get("input")
    shown = isinstance(value, str | int | float) and bool(keys) and keys[0] not in _HIDDEN and item["type"] != "missing"
    remedy = _remedy(value, truth=item["type"] == "bool_type") if item["type"] in _PLAIN_TYPES else ""
    return f"{text} (given: {short(str(value).lower() if isinstance(value, bool) else repr(value))}){remedy}" if shown else text


def _remedy(value: object, *, truth: bool = False) -> str:
    """Say what to write instead of a word that only some YAML readers take for a number or a truth value."""
    word = str(value).lower()
    if truth:
        return f": write {'true' if word in _TRUE else 'false'}" if word in (*_TRUE, *_FALSE) else ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 10**15:
        return f": write {int(value)}"
    for base, pattern in _SPELLINGS.items():
        if isinstance(value, str) and re.fullmatch(pattern, word):
            return f": write {int(word, base)}"
    if isinstance(value, str) and re.fullmatch(r"[0-9]+(:[0-5]?[0-9]){1,2}", word):
        return ": colons make no number"
    return ""
