"""``--set a.b=c``: one setting of a document replaced from the command line, or by a variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from launcher.errors import Problem, SpecError
from launcher.spec.document import MAX_DEPTH, Node, parse

SHORT_FORMS = {"grab.compression": "kind", "grab.reorder": "every"}
"""Sections that a single value may stand for, and the setting that it means."""


def apply(root: Node, option: str, literal: Sequence[str], nullable: Sequence[str] = ()) -> Node:
    """A new tree in which the option's setting is replaced or added.

    The text after ``=`` is read as YAML; under the paths of ``literal`` it is taken as it stands, except that a list in
    brackets is a list.

    Args:
        root: the document's tree; left unchanged.
        option: ``a.b=c``.
        literal: paths whose values are text.
        nullable: the same, but ``null`` and ``~`` mean that there is none.

    Raises:
        SpecError: naming the option.
    """
    path, equals, text = option.partition("=")
    keys = path.split(".")
    source = f"--set {option if len(option) <= 80 else option[:77] + '...'}"
    if not equals or not all(keys):
        raise _wrong(source, "", "must look like a.b=value")
    if len(keys) > MAX_DEPTH:
        raise _wrong(source, "", f"more than {MAX_DEPTH} levels deep")
    if text in ("null", "~") and _below(path, nullable):
        return put(root, path, Node(text, None, source, plain=True))
    return put(root, path, _leaf(path, text, source, (*literal, *nullable)))


def _below(path: str, names: Sequence[str]) -> bool:
    return any(path == name or path.startswith(name + ".") for name in names)


def put(root: Node, path: str, leaf: Node) -> Node:
    """A new tree in which the setting of a dotted path is replaced or added.

    Raises:
        SpecError: where the way leads through a list, or through a value that is no section.
    """
    return _replaced(root, path.split("."), leaf, path)


def _wrong(source: str, path: str, message: str) -> SpecError:
    return SpecError([Problem(source, None, path, message)])


def _leaf(path: str, text: str, source: str, literal: Sequence[str]) -> Node:
    if _below(path, literal) and not text.lstrip().startswith(("[", "{")):
        return Node(text, None, source)
    if not text.strip():
        return Node("", None, source, plain=True)
    try:
        return _without_lines(parse(text, source))
    except SpecError as error:
        raise SpecError([Problem(source, None, path, problem.message) for problem in error.problems]) from None


def _without_lines(node: Node) -> Node:
    if isinstance(node.content, dict):
        return replace(node, line=None, content={key: _without_lines(child) for key, child in node.content.items()})
    if isinstance(node.content, list):
        return replace(node, line=None, content=[_without_lines(child) for child in node.content])
    return replace(node, line=None)


def _written_out(node: Node, path: str, keys: Sequence[str]) -> Node:
    """The node as a mapping, where it is the short form of a section on the way."""
    section = ".".join(path.split(".")[: -len(keys)])
    if section not in SHORT_FORMS or not isinstance(node.content, str) or node.content in ("", "~", "null"):
        return node
    return replace(node, content={SHORT_FORMS[section]: node}, plain=False)


def _replaced(node: Node, keys: Sequence[str], leaf: Node, path: str) -> Node:
    if not keys:
        return leaf
    node = _written_out(node, path, keys)
    if isinstance(node.content, list):
        raise _wrong(leaf.source, path, f"the way to {keys[0]!r} leads through a list; set the whole list: [first, second]")
    entries = dict(node.content) if isinstance(node.content, dict) else {}
    if not isinstance(node.content, dict) and node.content not in ("", "~", "null"):
        way = f"the way to {keys[0]!r} leads through {node.content!r}, which holds no settings"
        raise _wrong(leaf.source, path, f"{way}; give the whole section, as in {{{keys[0]}: …}}")
    below = entries.get(keys[0], Node({}, None, leaf.source))
    entries[keys[0]] = _replaced(below, keys[1:], leaf, path)
    return replace(node, content=entries, plain=False)
