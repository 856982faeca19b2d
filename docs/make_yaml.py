"""Writes the reference part of ``docs/yaml.md`` from the JSON schema of a job's YAML::

    python docs/make_yaml.py

Text outside of the two marks in the page is written by hand and stays as it is.  A test compares the page with the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.spec.schema import document

PAGE = Path(__file__).with_name("yaml.md")
BEGIN, END = "<!-- The part below is made by `python docs/make_yaml.py`. -->", "<!-- The part above is made. -->"
NO_DEFAULT = "–"
Schema = dict[str, Any]


def page(text: str) -> str:
    """The page with a fresh reference between its marks."""
    head, _, rest = text.partition(BEGIN)
    _, mark, tail = rest.partition(END)
    assert mark, f"{PAGE} lacks its marks"
    return f"{head}{BEGIN}\n\n{reference()}\n{END}{tail}"


def reference() -> str:
    """All settings as Markdown: one heading and one table for each section."""
    schema = document()
    return "\n".join(line for path, section, defaults in _sections(schema) for line in _table(path, section, defaults, schema))


def _sections(schema: Schema) -> Iterator[tuple[str, Schema, Schema]]:
    """Path, schema and defaults of the top level and of each section below it, in the order of the schema."""
    waiting: list[tuple[str, Schema, Schema]] = [("", schema, {})]
    while waiting:
        path, section, defaults = waiting.pop(0)
        yield path, section, defaults
        below = []
        for key, node in section["properties"].items():
            found = _definition(node, schema)
            if found is not None:
                described = {**found, "description": _words(node, found)}
                below.append((f"{path}.{key}".lstrip("."), described, _default(key, node, defaults) or {}))
        waiting = below + waiting


def _table(path: str, section: Schema, defaults: Schema, schema: Schema) -> Iterator[str]:
    yield f"### `{path}`" if path else "### Top level"
    yield ""
    yield _escaped(section.get("description", ""))
    yield ""
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for key, node in section["properties"].items():
        found = _definition(node, schema)
        value = _value(node) if found is None else _section_value(path + key, node)
        default = _shown(_default(key, node, defaults)) if found is None else NO_DEFAULT
        if key in section.get("required", ()):
            default = "required"
        yield f"| `{key}` | {value} | {default} | {_escaped(_words(node, found))} |"
    yield ""


def _definition(node: Schema, schema: Schema) -> Schema | None:
    """The section that a setting refers to; None where it is a plain value."""
    for choice in (node, *node.get("anyOf", ())):
        if "$ref" in choice:
            found: Schema = schema["$defs"][choice["$ref"].rpartition("/")[2]]
            return found
    return None


def _words(node: Schema, found: Schema | None) -> str:
    return str(node.get("description") or (found or {}).get("description", ""))


def _default(key: str, node: Schema, defaults: Schema) -> Any:
    """The default as a user writes it: a section's own default spells durations with units, a setting's does not."""
    return defaults.get(key, node.get("default"))


def _section_value(path: str, node: Schema) -> str:
    """A link to the section's table, and the single value that may stand for the section."""
    short = [_value(choice) for choice in node.get("anyOf", ()) if "$ref" not in choice and choice != {"type": "null"}]
    return " or ".join([f"[section](#{path.replace('.', '')})", *short])


def _value(node: Schema) -> str:
    """What may stand as the value, in words."""
    if any("pattern" in choice for choice in node.get("anyOf", ())):
        return f"text such as `{node['examples'][0]}`"
    if "anyOf" in node:
        choices = [_value(choice) for choice in node["anyOf"] if choice != {"type": "null"} and choice != {"const": 0}]
        return " or ".join(dict.fromkeys(choices))
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if "const" in node:
        return f"`{node['const']}`"
    kind = node.get("type")
    if kind == "array":
        return f"list of {_value(node['items']).replace('text', 'texts')}"
    if kind == "object":
        return f"mapping to {_value(node['additionalProperties'])}" if "additionalProperties" in node else "mapping"
    if kind in ("integer", "number"):
        return ("whole number" if kind == "integer" else "number") + _range(node)
    return "`true` or `false`" if kind == "boolean" else "text"  # a list of types is text that needs no quotes


def _range(node: Schema) -> str:
    least, most = node.get("minimum"), node.get("maximum")
    above = node.get("exclusiveMinimum")
    if above is not None:
        return f" above {above}" + (f", up to {most}" if most is not None else "")
    if least is None:
        return ""
    return f" from {least}" + (f" to {most}" if most is not None else "")


def _shown(default: Any) -> str:
    if default is None or default in ([], {}):
        return NO_DEFAULT
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _escaped(text: str) -> str:
    """One line of Markdown, in which a bar is no border of a table."""
    return " ".join(text.replace("|", "\\|").replace("``", "`").split())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
