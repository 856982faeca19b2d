"""YAML text as a tree that remembers where everything stands.

PyYAML's events are used, not its constructors: the tree keeps the line and the source text of every scalar, so that an error
can name the line, and so that ``env: {X: 010}`` reaches the rank as the three characters that the user typed.  Tags, merge keys,
duplicate keys, several documents and keys that are not text are refused.  Size, depth and the growth by aliases are bounded; no
part recurses over the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import yaml

from launcher.errors import Problem, SpecError

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_NODES = 50_000

Content: TypeAlias = "str | list[Node] | dict[str, Node]"


@dataclass(frozen=True)
class Node:
    """One value of the document."""

    content: Content
    """Scalars hold their text, sequences and mappings their children."""
    line: int | None
    """Line of the value's key, or of the value itself in a sequence; from 1, None where it comes from an option."""
    source: str
    """File or option that it comes from."""
    plain: bool = False
    """Whether a scalar was written without quotes, so that ``12`` may mean a number."""
    size: int = 1
    """Nodes in the tree below and including this one, aliases counted as often as they are used."""


@dataclass
class _Frame:
    """A sequence or mapping that is still open."""

    mapping: bool
    line: int
    anchor: str | None
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Node] = field(default_factory=dict)
    key: Node | None = None
    size: int = 1


class _Builder:
    """Turns a stream of events into one `Node`."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.stack: list[_Frame] = []
        self.anchors: dict[str, Node] = {}
        self.open_anchors: set[str] = set()
        self.root: Node | None = None

    def fail(self, line: int, message: str) -> SpecError:
        return SpecError([Problem(self.source, line, "", message)])

    def feed(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise self.fail(line, "a second document starts here; a file holds one job")
        if isinstance(event, yaml.NodeEvent):
            self._node(event, line)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close()

    def _node(self, event: yaml.NodeEvent, line: int) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._alias(event, line)
            return
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise self.fail(line, f"tags are not supported ({tag}); write the value itself, in quotes if it is text")
        if isinstance(event, yaml.ScalarEvent):
            node = Node(_joined_pairs(event.value), line, self.source, plain=event.style is None and event.tag is None)
            self._add(node, event.anchor)
            return
        if len(self.stack) >= MAX_DEPTH:
            raise self.fail(line, f"nested more than {MAX_DEPTH} levels deep")
        if event.anchor is not None:
            self.open_anchors.add(event.anchor)
        self.stack.append(_Frame(isinstance(event, yaml.MappingStartEvent), line, event.anchor))

    def _alias(self, event: yaml.AliasEvent, line: int) -> None:
        if event.anchor in self.open_anchors:
            raise self.fail(line, f"*{event.anchor} refers to a value that it is itself part of")
        if event.anchor not in self.anchors:
            raise self.fail(line, f"*{event.anchor} is not defined before this line")
        self._add(replace(self.anchors[event.anchor], line=line), None)

    def _close(self) -> None:
        frame = self.stack.pop()
        content: Content = frame.entries if frame.mapping else frame.items
        if frame.anchor is not None:
            self.open_anchors.discard(frame.anchor)
        self._add(Node(content, frame.line, self.source, size=frame.size), frame.anchor)

    def _add(self, node: Node, anchor: str | None) -> None:
        if anchor is not None:
            self.anchors[anchor] = node
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        frame.size += node.size
        if frame.size > MAX_NODES:
            raise self.fail(node.line or 1, f"more than {MAX_NODES} values (aliases are counted where they are used)")
        if not frame.mapping:
            frame.items.append(node)
        elif frame.key is None:
            frame.key = self._key(node, frame)
        else:
            frame.entries[str(frame.key.content)] = replace(node, line=frame.key.line)
            frame.key = None

    def _key(self, node: Node, frame: _Frame) -> Node:
        line = node.line or 1
        if not isinstance(node.content, str):
            raise self.fail(line, "a key must be a word, not a list or a mapping")
        if node.plain and node.content == "<<":
            raise self.fail(line, "merge keys (<<) are not supported; write the settings out")
        if node.content in frame.entries:
            first = frame.entries[node.content].line
            raise self.fail(line, f"the key {node.content!r} is given twice, first in line {first}")
        return node


def _joined_pairs(text: str) -> str:
    """Text with JSON's escapes for characters beyond 16 bits, which come in pairs, joined; single halves stay."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def parse(text: str, source: str) -> Node:
    """The tree of one YAML document.

    Args:
        text: the document, at most `MAX_BYTES` long.
        source: what errors call it.

    Raises:
        SpecError: for anything that is not one well-formed document within the bounds.
    """
    if len(text) > MAX_BYTES:
        raise SpecError([Problem(source, None, "", f"larger than {MAX_BYTES >> 20} MiB; this is not a job's YAML")])
    builder = _Builder(source)
    for event in _events(text, source):
        builder.feed(event)
    if builder.root is None or (builder.root.plain and builder.root.content == ""):
        raise SpecError([Problem(source, None, "", "the file is empty; a job needs at least a command")])
    return builder.root


def _events(text: str, source: str) -> Iterator[yaml.Event]:
    try:
        yield from yaml.parse(text, Loader=yaml.SafeLoader)
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
