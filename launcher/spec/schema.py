"""The JSON schema of a job's YAML, for editors: completion, descriptions, and an error while typing.

It accepts everything that `launcher.spec.loader` accepts, and refuses most of what that refuses; the loader has the last word.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from typing import Any

from pydantic import BaseModel

from launcher.spec.loader import LITERAL, LITERAL_OR_NULL
from launcher.spec.model import Spec
from launcher.spec.overrides import SHORT_FORMS
from launcher.spec.problems import model_in

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEXT = ["string", "number", "boolean"]
"""What may stand where text is wanted: unquoted words that look like numbers are taken as they are written."""

ONE_OR_MORE = ("depends_on", "resources.hosts", "resources.ssh.options")
"""Lists that a single text may stand for."""

Schema = dict[str, Any]


def text() -> str:
    """The schema as one JSON document."""
    return json.dumps(document(), indent=2) + "\n"


def document() -> Schema:
    """The schema as plain data."""
    schema = Spec.model_json_schema(mode="validation")
    definitions: Schema = schema.get("$defs", {})
    _describe(schema, Spec, definitions)
    for path in (*LITERAL, *LITERAL_OR_NULL):
        node = _at(schema, path.split("."), definitions)
        _widen(node)
        if path in LITERAL_OR_NULL:
            _allow(node, {"type": "null"})
    for path, key in SHORT_FORMS.items():
        section = _definition(_at(schema, path.split("."), definitions), definitions)
        _allow(_at(schema, path.split("."), definitions), dict(section["properties"][key]))
    properties = schema["properties"]
    properties["command"] = {**_described(properties["command"]), "anyOf": [{"type": _TEXT}, _list_of({"type": _TEXT})]}
    for path in ONE_OR_MORE:
        node = _at(schema, path.split("."), definitions)
        words = _described(node)
        node.clear()
        node |= {**words, "anyOf": [{"type": _TEXT}, _list_of({"type": _TEXT}), {"type": "null"}]}
    properties["variants"] = {**_described(properties["variants"]), "type": "object"}
    for node in properties.values():
        _allow(node, {"type": "null"})
    return {"$schema": DIALECT, "title": "hvdgrab job", **_without_titles(schema), "required": ["command"]}


def _list_of(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _described(node: Schema) -> Schema:
    return {"description": node["description"]} if "description" in node else {}


def _definition(node: Schema, definitions: Schema) -> Schema:
    """The section that a node stands for: itself, or what it refers to."""
    for choice in (node, *node.get("anyOf", ())):
        if "$ref" in choice:
            section: Schema = definitions[choice["$ref"].rpartition("/")[2]]
            return section
    return node


def _at(schema: Schema, path: list[str], definitions: Schema) -> Schema:
    """The node of a setting."""
    node = schema
    for key in path:
        node = _definition(node, definitions)["properties"][key]
    return node


def _allow(node: Schema, other: Schema) -> None:
    """Let a node accept something else too."""
    kept = {key: node.pop(key) for key in list(node) if key not in ("description", "default", "examples", "title")}
    choices = kept["anyOf"] if list(kept) == ["anyOf"] else [kept]
    node["anyOf"] = [*choices, *([other] if other not in choices else [])]


def _widen(node: Schema) -> None:
    """Let every text below a node be written without quotes."""
    stack: list[Any] = [node]
    while stack:
        one = stack.pop()
        if isinstance(one, list):
            stack += one
        elif isinstance(one, dict):
            stack += [below for key, below in one.items() if key not in ("default", "examples")]
            if one.get("type") == "string":
                one["type"] = list(_TEXT)


def _describe(schema: Schema, model: type[BaseModel], definitions: Schema) -> None:
    """Put the models' own words beside every setting.  Recursion is bounded by the depth of the sections."""
    for name, words in docstrings(model).items():
        if name in schema["properties"]:
            schema["properties"][name]["description"] = words
    for name, field in model.model_fields.items():
        below = model_in(field.annotation)
        if below is not None:
            _describe(_definition(schema["properties"][name], definitions), below, definitions)


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The text below each setting of a model, as one line without markup."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for field, words in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(words, ast.Expr):
            value = words.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[field.target.id] = " ".join(value.value.replace("``", "").split())
    return found


def _without_titles(value: Any) -> Any:
    """Without the titles that repeat each setting's own name."""
    if isinstance(value, dict):
        return {key: _without_titles(below) for key, below in value.items() if not (key == "title" and isinstance(below, str))}
    return [_without_titles(below) for below in value] if isinstance(value, list) else value
