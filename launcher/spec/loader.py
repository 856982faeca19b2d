"""From the name of a file and ``--set`` options to specs, with errors that name file, line, path and the nearest valid key.

Scalars are read by YAML 1.2's core rules, so that ``on`` and ``1:30:00`` are text.  A number with a leading zero means different
things in YAML 1.1 and 1.2 and is refused.  In settings that hold text every scalar is text exactly as it is written.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from launcher.errors import Problem, SpecError, UsageError
from launcher.jobdir.paths import NAME_PATTERN, NAME_RULE
from launcher.spec.document import MAX_BYTES, NULLS, Node, apply, nullable_text, parse
from launcher.spec.hosts import read_hostfile
from launcher.spec.model import Places, Spec, text_settings
from launcher.spec.problems import describe, places_of
from launcher.spec.variants import expanded_trees

ENDINGS = (".yaml", ".yml")
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_INTEGER = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,40}|[0-9]{1,40}(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,4})?")


@dataclass(frozen=True)
class Source:
    """The text of a job's YAML."""

    text: str
    name: str
    """What errors call it."""
    default_name: str | None = None
    """The job's name if the text gives none."""

    @classmethod
    def of_file(cls, path: Path, shown_as: str | None = None) -> Source:
        """Read a file, which errors call by its path, or as it is shown.

        Raises:
            UsageError: if the file cannot be read.
            SpecError: if it holds no text, or too much.
        """
        name = shown_as or str(path)
        return cls(_read(path, name), name, path.stem)

    @classmethod
    def find(cls, wanted: str) -> Source:
        """Read a file, or a ready-made job (`find_spec`).

        Raises:
            UsageError, SpecError: as `of_file`.
        """
        path = find_spec(wanted)
        return cls.of_file(path, wanted if Path(wanted) == path else str(path))


def load(source: Source, overrides: Sequence[str] = (), group_of: Callable[[str], str] = str) -> list[Spec]:
    """Load the specs of a job's YAML: one, or one for each combination of its variants, which are then of one group.

    The names of variants are ``name-order-rr-seed-0`` and the like.

    Args:
        source: the text.
        overrides: ``a.b=c`` texts, applied in order; a setting that varies cannot be set.
        group_of: makes the group's name from the job's ``name``, if the text names no group.

    Raises:
        SpecError: if the text, an override or a variant is wrong; it holds every fault that was found.
    """
    root = parse(source.text, source.name)
    if not isinstance(root.content, dict):
        message = "a job is a mapping of settings, such as `command: python train.py`"
        raise SpecError([Problem(source.name, root.line, "", message)])
    for override in overrides:
        root = apply(root, override, text_settings())
    spec = _spec_of(root, source)
    trees = expanded_trees(spec, root, spec.group or group_of(spec.name))
    return [_spec_of(changed, source) for changed in trees] or [spec]


def _spec_of(root: Node, source: Source) -> Spec:
    data = _sections(root, source.default_name)
    try:
        spec = Spec.model_validate(data, strict=True)
    except ValidationError as error:
        raise SpecError(describe(error, root)) from None
    return _with_hosts(spec.located(Places(source.name, places_of(root))))


def _with_hosts(spec: Spec) -> Spec:
    """Put the host file's hosts in the place of its path, so that a frozen spec needs no further file."""
    name = spec.resources.hostfile
    if name is None:
        return spec
    try:
        hosts = read_hostfile(Path(os.path.expanduser(name)), name)  # noqa: PTH111 - an unknown user's home is left as it is
    except SpecError as error:
        beside = [
            spec.problem("resources.hostfile", f"{name} {one.message}") if one.line is None else one for one in error.problems
        ]
        raise SpecError(beside) from None
    resources = spec.resources.model_copy(update={"hosts": [str(host) for host in hosts], "hostfile": None})
    return spec.model_copy(update={"resources": resources})


def _read(path: Path, source: str) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise SpecError([Problem(source, None, "", f"larger than {MAX_BYTES >> 20} MiB; this is not a job's YAML")])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SpecError([Problem(source, line, "", f"not UTF-8 text (byte 0x{raw[error.start]:02x})")]) from None


def _sections(root: Node, default_name: str | None) -> dict[str, Any]:
    assert isinstance(root.content, dict)
    data = {key: _value(node, key) for key, node in root.content.items() if not _empty(node)}
    if "name" not in data and default_name is not None:
        if not re.fullmatch(NAME_PATTERN, default_name):
            message = f"is missing, and the file's own name {default_name!r} will not do: {NAME_RULE}"
            raise SpecError([Problem(root.source, None, "name", message)])
        data["name"] = default_name
    if isinstance(data.get("command"), str):
        data["command"] = _split(data["command"], root.content["command"])
    return data


def _empty(node: Node) -> bool:
    """Tell whether a section was named but left empty, which means its defaults."""
    return node.plain and node.content in NULLS


def _split(text: str, node: Node) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SpecError([Problem(node.source, node.line, "command", f"cannot be split into arguments: {error}")]) from None


def _value(node: Node, path: str) -> Any:
    """Turn the node into plain data.  Recursion is bounded by the document's depth."""
    if isinstance(node.content, dict):
        return {key: _value(child, f"{path}.{key}") for key, child in node.content.items()}
    if isinstance(node.content, list):
        return [_value(child, f"{path}.{index}") for index, child in enumerate(node.content)]
    if not node.plain:
        return node.content
    path = path.removeprefix("variants.")  # values under variants are read like those of their setting
    nullable = nullable_text(path, text_settings())
    if nullable is None:
        return _scalar(node, path)
    if node.content not in NULLS:
        return node.content
    if nullable:
        return None
    message = f"{node.content or 'nothing'} is YAML's null: put it in quotes if it is meant as text"
    raise SpecError([Problem(node.source, node.line, path, message)])


def _scalar(node: Node, path: str) -> Any:
    text = node.content
    assert isinstance(text, str)
    if text in NULLS:
        return None
    if text in _TRUTH:
        return _TRUTH[text]
    if _LEADING_ZERO.fullmatch(text):
        message = f"{text} is octal to some YAML readers and decimal to others: write it without the leading zero"
        raise SpecError([Problem(node.source, node.line, path, message)])
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def shipped_directories() -> list[Path]:
    """List the directories of ready-made jobs: in an installed package, or beside the package in a checkout."""
    package = Path(str(files("launcher")))
    return [path for path in (package / "_shipped" / "configs", package.parent / "configs") if path.is_dir()]


def shipped_names() -> list[str]:
    """List the names of the ready-made jobs."""
    return sorted({path.stem for folder in shipped_directories() for path in folder.iterdir() if path.suffix in ENDINGS})


def find_spec(wanted: str) -> Path:
    """Find the file that is meant: the path itself, else a ready-made job (``configs/quickstart.yaml`` or ``quickstart``).

    Raises:
        UsageError: if there is none, naming the ready-made ones.
    """
    path = Path(wanted).expanduser()
    if path.is_file():
        return path
    found = _shipped(wanted) if not path.is_absolute() else None
    if found is not None:
        return found
    if path.is_dir():
        raise UsageError(f"{wanted} is a directory; a job is one YAML file")
    if path.exists():
        raise UsageError(f"{wanted} is not a regular file")
    names = ", ".join(shipped_names())
    a_word = len(path.parts) == 1 and not path.suffix  # it may be meant as a command
    what = f"there is no command or file called {wanted!r}" if a_word else f"there is no file {wanted}"
    raise UsageError(what + (f"; ready-made jobs: {names}" if names else ""))


def _shipped(wanted: str) -> Path | None:
    path = Path(wanted)
    if path.parts[:-1] not in ((), ("configs",)) or path.name in ("", ".", ".."):
        return None
    names = [path.name] if path.suffix in ENDINGS else [path.name + ending for ending in ENDINGS]
    candidates = [folder / name for folder in shipped_directories() for name in names]
    return next((candidate for candidate in candidates if candidate.is_file()), None)
