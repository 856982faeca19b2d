"""The JSON schema of a job's YAML, for editors: completion, descriptions, and an error while typing.

It accepts everything that `launcher.spec.loader` accepts, and refuses most of what that refuses; the loader has the last word.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic._internal._docs_extraction import extract_docstrings_from_cls

from launcher.spec.document import SHORT_FORMS
from launcher.spec.fields import OneOrMore
from launcher.spec.model import Spec, model_in, settings, text_settings

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEXT = ["string", "number", "boolean"]
"""What may stand where text is wanted: unquoted words that look like numbers are taken as they are written."""

Schema = dict[str, Any]


def text() -> str:
    """Write the schema as one JSON document."""
    return json.dumps(document(), indent=2) + "\n"


def document() -> Schema:
    """Build the schema as plain data."""
    schema = Spec.model_json_schema(mode="validation")
    definitions: Schema = schema.get("$defs", {})
    _describe(schema, Spec, definitions)
    for path, nullable in text_settings().items():
        node = _at(schema, path.split("."), definitions)
        _widen(node)
        if nullable:
            _allow(node, {"type": "null"})
    for path, key in SHORT_FORMS.items():
        section = _definition(_at(schema, path.split("."), definitions), definitions)
        _allow(_at(schema, path.split("."), definitions), dict(section["properties"][key]))
    properties = schema["properties"]
    properties["command"] = {**_described(properties["command"]), "anyOf": [{"type": _TEXT}, _list_of({"type": _TEXT})]}
    for path in (path for path, info in settings() if OneOrMore in info.metadata):
        node = _at(schema, path.split("."), definitions)
        words = _described(node)
        node.clear()
        node |= {**words, "anyOf": [{"type": _TEXT}, _list_of({"type": _TEXT}), {"type": "null"}]}
    properties["variants"] = {**_described(properties["variants"]), "type": "object"}
    for node in properties.values():
        _allow(node, {"type": "null"})
    return {"$schema": DIALECT, "title": "hvdgrab job", **_in_words(schema), "required": ["command"]}


def _list_of(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _described(node: Schema) -> Schema:
    return {"description": node["description"]} if "description" in node else {}


def _definition(node: Schema, definitions: Schema) -> Schema:
    """Find the section that a node stands for: itself, or what it refers to."""
    for choice in (node, *node.get("anyOf", ())):
        if "$ref" in choice:
            section: Schema = definitions[choice["$ref"].rpartition("/")[2]]
            return section
    return node


def _at(schema: Schema, path: list[str], definitions: Schema) -> Schema:
    """Find the node of a setting."""
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
    """Put the models' attribute docstrings beside the settings.  Recursion is bounded by the depth of the sections.

    The models do without ``use_attribute_docstrings``, with which every command would read their sources.
    """
    for name, words in extract_docstrings_from_cls(model, use_inspect=True).items():
        if name in schema["properties"]:
            schema["properties"][name]["description"] = words
    for name, info in model.model_fields.items():
        below = model_in(info.annotation)
        if below is not None:
            _describe(_definition(schema["properties"][name], definitions), below, definitions)


def _in_words(value: Any) -> Any:
    """Drop the titles that repeat each setting's own name, and write descriptions as one line without markup."""
    if isinstance(value, list):
        return [_in_words(below) for below in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _in_words(below) for key, below in value.items() if not (key == "title" and isinstance(below, str))}
    if isinstance(kept.get("description"), str):
        kept["description"] = " ".join(kept["description"].replace("``", "").split())
    return kept
