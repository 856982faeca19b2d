"""YAML text as a tree that remembers where everything stands, and in which single settings can be replaced.

PyYAML composes the nodes; its constructors are not used: the tree keeps the line and the source text of every scalar, so that an
error can name the line, and so that ``env: {X: 010}`` reaches the rank as the three characters that the user typed.  Tags, merge
keys, duplicate keys, several documents and keys that are not text are refused.  Size, depth and growth by aliases are bounded.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import yaml

from launcher.errors import Problem, SpecError

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_NODES = 50_000
NULLS = ("", "~", "null", "Null", "NULL")
"""Plain scalars that YAML reads as null."""
SHORT_FORMS = {"grab.compression": "kind", "grab.reorder": "every"}
"""Sections that a single value may stand for, and the setting that it means."""

Content: TypeAlias = "str | list[Node] | dict[str, Node]"


@dataclass(frozen=True)
class Node:
    """One value of the document."""

    content: Content
    """Scalars hold their text, sequences and mappings their children."""
    line: int | None
    """Line of the value's key, or of the value itself in a sequence; from 1, None if it comes from an option."""
    source: str
    """File or option that it comes from."""
    plain: bool = False
    """Whether a scalar was written without quotes, so that ``12`` may mean a number."""


class _Composer(yaml.SafeLoader):
    """Composes one document, within the bounds."""

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self.source = source
        self.open: list[str | None] = []
        """Anchors of the collections around the present node; None for those without."""

    def fail(self, line: int, message: str) -> SpecError:
        return SpecError([Problem(self.source, line, "", message)])

    def present(self) -> tuple[Any, int]:
        """Return the next event, and its line from 1."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        return event, event.start_mark.line + 1

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose as PyYAML does, but refuse in our own words; an alias keeps the line of its use."""
        event, line = self.present()
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self.open:
                raise self.fail(line, f"*{event.anchor} refers to a value that it is itself part of")
            if event.anchor not in self.anchors:
                raise self.fail(line, f"*{event.anchor} is not defined before this line")
            used = copy.copy(super().compose_node(parent, index))
            assert used is not None
            used.start_mark = event.start_mark
            return used
        if event.tag not in (None, "!"):
            raise self.fail(line, f"tags are not supported ({event.tag}); write the value itself, in quotes if it is text")
        self.anchors.pop(event.anchor, None)  # an anchor may be given anew
        if isinstance(event, yaml.ScalarEvent):
            scalar = super().compose_node(parent, index)
            assert isinstance(scalar, yaml.ScalarNode)
            scalar.style = "'" if event.tag is not None else event.style
            return scalar
        if len(self.open) >= MAX_DEPTH:
            raise self.fail(line, f"nested more than {MAX_DEPTH} levels deep")
        self.open.append(event.anchor)
        node = super().compose_node(parent, index)
        self.open.pop()
        return node


class _Tree:
    """Turns composed nodes into a `Node`."""

    def __init__(self, composer: _Composer) -> None:
        self._composer = composer
        self._count = 0

    def build(self, node: yaml.Node, line: int, depth: int = 0) -> Node:
        """Build the tree below a node, whose key stands in this line."""
        self._count += 1
        if depth > MAX_DEPTH:
            raise self._composer.fail(line, f"nested more than {MAX_DEPTH} levels deep")
        if self._count > MAX_NODES:
            raise self._composer.fail(line, f"more than {MAX_NODES} values (aliases are counted where they are used)")
        source = self._composer.source
        if isinstance(node, yaml.ScalarNode):
            return Node(_joined_pairs(node.value), line, source, plain=node.style is None)
        if isinstance(node, yaml.SequenceNode):
            return Node([self.build(item, item.start_mark.line + 1, depth + 1) for item in node.value], line, source)
        entries: dict[str, Node] = {}
        for key, value in node.value:
            at = key.start_mark.line + 1
            name = self._name(key, at, entries)
            entries[name] = self.build(value, at, depth + 1)
        return Node(entries, line, source)

    def _name(self, key: yaml.Node, line: int, entries: Mapping[str, Node]) -> str:
        if not isinstance(key, yaml.ScalarNode):
            raise self._composer.fail(line, "a key must be a word, not a list or a mapping")
        if key.style is None and key.value == "<<":
            raise self._composer.fail(line, "merge keys (<<) are not supported; write the settings out")
        name = _joined_pairs(key.value)
        if name in entries:
            raise self._composer.fail(line, f"the key {name!r} is given twice, first in line {entries[name].line}")
        return name


def _joined_pairs(text: str) -> str:
    """Join the pairs of JSON's escapes for characters beyond 16 bits; single halves stay."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def parse(text: str, source: str) -> Node:
    """Parse one YAML document.

    Args:
        text: the document, at most `MAX_BYTES` long.
        source: what errors call it.

    Raises:
        SpecError: for anything that is not one well-formed document within the bounds.
    """
    if len(text) > MAX_BYTES:
        raise SpecError([Problem(source, None, "", f"larger than {MAX_BYTES >> 20} MiB; this is not a job's YAML")])
    try:
        root = _composed(text, source)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        line = None if mark is None else mark.line + 1
        raise SpecError([Problem(source, line, "", f"not valid YAML: {what}")]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError([Problem(source, line, "", f"the character {error.character!r} cannot stand in YAML")]) from None
    except (ValueError, OverflowError) as error:  # PyYAML: an escape beyond Unicode, a directive with a huge number
        raise SpecError([Problem(source, None, "", f"not valid YAML: {error}")]) from None
    if root is None or (root.plain and root.content == ""):
        raise SpecError([Problem(source, None, "", "the file is empty; a job needs at least a command")])
    return root


def _composed(text: str, source: str) -> Node | None:
    composer = _Composer(text, source)
    try:
        node = composer.get_node() if composer.check_node() else None
        if composer.check_node():
            raise composer.fail(composer.present()[1], "a second document starts here; a file holds one job")
        return None if node is None else _Tree(composer).build(node, node.start_mark.line + 1)
    finally:
        composer.dispose()


def apply(root: Node, option: str, text_settings: Mapping[str, bool]) -> Node:
    """Make a new tree in which the option's setting is replaced or added.

    The text after ``=`` is read as YAML; for a setting that holds text it is taken as it stands, except that a list in brackets
    is a list.

    Args:
        root: the document's tree; left unchanged.
        option: ``a.b=c``.
        text_settings: settings that hold text, and whether ``null`` and ``~`` mean there that none is given.

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
    nullable = nullable_text(path, text_settings)
    if text in ("null", "~") and nullable:
        return put(root, path, Node(text, None, source, plain=True))
    return put(root, path, _leaf(path, text, source, as_text=nullable is not None))


def nullable_text(path: str, text_settings: Mapping[str, bool]) -> bool | None:
    """Return whether a setting that holds text, or a value below it, may be null; None for all other paths."""
    while path and path not in text_settings:
        path = path.rpartition(".")[0]
    return text_settings.get(path)


def put(root: Node, path: str, leaf: Node) -> Node:
    """Make a new tree in which the setting of a dotted path is replaced or added.

    Raises:
        SpecError: if the way leads through a list, or through a value that is no section.
    """
    return _replaced(root, path.split("."), leaf, path)


def _wrong(source: str, path: str, message: str) -> SpecError:
    return SpecError([Problem(source, None, path, message)])


def _leaf(path: str, text: str, source: str, *, as_text: bool) -> Node:
    if as_text and not text.lstrip().startswith(("[", "{")):
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
    """Write the node out as a mapping, if it is the short form of a section on the way."""
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
