"""Hosts and their slots: node lists, host lists and host files, read by the project's own parser.

Understood are ``n[1-3,07-09],gpu-a[1,2]x`` (SLURM's node lists), ``node:4`` (MPICH) and ``node slots=4`` (Open MPI).  All
expansions are bounded, and names that could be taken for an option by ssh or mpirun are refused.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import Problem, SpecError
from launcher.host.text import short

MAX_HOSTS = 4_096
MAX_SLOTS = 4_096
MAX_FILE = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_NAME_RULE = "a host's name consists of letters, digits, dots, dashes and underscores, and starts with a letter or digit"
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True)
class Host:
    """A host that a spec offers; ``slots`` is None if it does not say how many ranks may run there."""

    name: str
    slots: int | None = None

    def __str__(self) -> str:
        return self.name if self.slots is None else f"{self.name}:{self.slots}"


def expand_nodelist(text: str) -> list[str]:
    """Expand a node list such as ``n[1-3,07-09],gpu-a[1,2]x`` to names, in its order.

    Raises:
        ValueError: if it is malformed or names more than `MAX_HOSTS` hosts.
    """
    names: list[str] = []
    for part in _split(text):
        for name in _expand(part):
            if len(names) >= MAX_HOSTS:
                raise ValueError(f"names more than {MAX_HOSTS} hosts")
            names.append(name)
    return names


def _split(text: str) -> list[str]:
    """Split the list at its commas, but for those in brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise ValueError(f"brackets do not match in {short(text)!r}")
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    if depth:
        raise ValueError(f"a bracket is not closed in {short(text)!r}")
    return [*parts, text[start:]]


def _expand(part: str) -> Iterable[str]:
    pieces = re.split(r"\[([^\[\]]*)\]", part.strip())
    choices = [[piece] if index % 2 == 0 else _numbers(piece, part) for index, piece in enumerate(pieces)]
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > MAX_HOSTS:
        raise ValueError(f"{short(part)!r} names more than {MAX_HOSTS} hosts")
    return [_checked("".join(chosen)) for chosen in itertools.product(*choices)]


def _numbers(text: str, part: str) -> list[str]:
    numbers: list[str] = []
    for piece in text.split(","):
        found = _RANGE.fullmatch(piece.strip())
        if found is None:
            raise ValueError(f"{short(piece)!r} in {short(part)!r} is no number and no range such as 1-3")
        first, last = found.group(1), found.group(2) or found.group(1)
        if int(last) < int(first):
            raise ValueError(f"the range {piece} in {short(part)!r} runs backwards")
        if len(numbers) + int(last) - int(first) >= MAX_HOSTS:
            raise ValueError(f"{short(part)!r} names more than {MAX_HOSTS} hosts")
        width = len(first) if first.startswith("0") else 0
        numbers += [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{short(name)!r} is no host: {_name_remedy(name)}")
    return name


def _name_remedy(name: str) -> str:
    if "@" in name:
        return "write the user under resources.ssh.user"
    return "addresses with colons are not supported, give the host a name" if name.count(":") > 1 else _NAME_RULE


def parse_hosts(text: str) -> list[Host]:
    """Parse one item of ``resources.hosts``: a name or node list, each part with ``:slots`` at its end or without.

    Raises:
        ValueError: with the reason.
    """
    hosts: list[Host] = []
    for part in _split(text):
        names, colon, slots = part.strip().partition(":")
        count = _slots(slots) if colon and ":" not in slots else None
        hosts += [Host(name, count) for name in expand_nodelist(names if count is not None or not colon else part.strip())]
        if len(hosts) > MAX_HOSTS:
            raise ValueError(f"names more than {MAX_HOSTS} hosts")
    return hosts


def _slots(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= MAX_SLOTS:
        raise ValueError(f"slots must be a whole number from 1 to {MAX_SLOTS} (given: {short(text)!r})")
    return int(text)


def merge(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Merge the entries of each host, adding their slots.

    Raises:
        ValueError: if one of several entries of a host gives no slots, or there are too many hosts.
    """
    merged: dict[str, Host] = {}
    for host in hosts:
        known = merged.get(host.name)
        if known is None:
            merged[host.name] = host
        elif known.slots is None or host.slots is None:
            raise ValueError(f"{host.name} is named twice: name it once, with its slots")
        else:
            merged[host.name] = Host(host.name, known.slots + host.slots)
    if len(merged) > MAX_HOSTS:
        raise ValueError(f"names more than {MAX_HOSTS} hosts")
    return tuple(merged.values())


def parse_hostfile(text: str, source: str) -> tuple[Host, ...]:
    """Parse a host file: a host a line, ``#`` starts a comment.

    Args:
        text: the file's text.
        source: what errors call it.

    Raises:
        SpecError: naming the line.
    """
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if words:
            hosts += _line(words, source, number)
        if len(hosts) > MAX_HOSTS:
            raise SpecError([Problem(source, number, "", f"names more than {MAX_HOSTS} hosts")])
    if not hosts:
        raise SpecError([Problem(source, None, "", "names no host: write a host a line, as in `node1 slots=4`")])
    try:
        return merge(hosts)
    except ValueError as error:
        raise SpecError([Problem(source, None, "", str(error))]) from None


def _line(words: Sequence[str], source: str, number: int) -> list[Host]:
    try:
        found = parse_hosts(words[0])
        for word in words[1:]:
            found = _with_option(found, word)
    except ValueError as error:
        raise SpecError([Problem(source, number, "", str(error))]) from None
    return found


def _with_option(hosts: list[Host], word: str) -> list[Host]:
    key, equals, value = word.partition("=")
    if not equals or key.replace("-", "_") not in ("slots", "max_slots"):
        raise ValueError(f"{short(word)!r} is not understood: after a host comes slots=N, and nothing else")
    count = _slots(value)
    if key != "slots":
        return [Host(host.name, min(count, host.slots) if host.slots else host.slots) for host in hosts]
    if any(host.slots is not None for host in hosts):
        raise ValueError("slots are given twice in this line")
    return [Host(host.name, count) for host in hosts]


def read_hostfile(path: Path, shown_as: str) -> tuple[Host, ...]:
    """Read the hosts of a file; only a regular file of at most 1 MiB is read.

    Raises:
        SpecError: naming the file, and the line if there is one.
    """

    def fail(message: str) -> SpecError:
        return SpecError([Problem(shown_as, None, "", message)])

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise fail("is not a regular file")
            raw = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:
        raise fail(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_FILE:
        raise fail("is larger than 1 MiB; this is not a host file")
    try:
        return parse_hostfile(raw.decode("utf-8-sig"), shown_as)
    except UnicodeDecodeError:
        raise fail("is not UTF-8 text") from None
