"""From a file and ``--set`` options to a `Spec`, with errors that name file, line, path and the nearest valid key.

Scalars are read by YAML 1.2's core rules, so that ``on`` and ``1:30:00`` are text.  A number with a leading zero means different
things in YAML 1.1 and 1.2 and is refused.  Under the keys of `LITERAL` every scalar is text exactly as it is written.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from launcher.errors import Problem, SpecError, UsageError
from launcher.jobdir.paths import NAME_PATTERN, NAME_RULE
from launcher.spec.document import MAX_BYTES, Node, parse
from launcher.spec.hosts import read_hostfile
from launcher.spec.model import Places, Spec
from launcher.spec.overrides import apply
from launcher.spec.problems import describe, places_of
from launcher.spec.variants import expanded_trees

LITERAL = ("name", "command", "workdir", "env", "secrets", "backend.extra_args")
"""Settings whose scalars are never read as numbers or truth values."""
LITERAL_OR_NULL = (
    "backend.mpirun", "checkpoint.signal", "depends_on", "group", "network.horovod", "network.interface",
    "network.nccl_debug", "network.nccl_socket_ifname", "network.ucx_devices", "network.ucx_transports", "resources.hostfile",
    "resources.hosts", "resources.ssh.identity", "resources.ssh.options", "resources.ssh.user", "slurm.account",
    "slurm.clusters", "slurm.constraint", "slurm.exclude", "slurm.extra", "slurm.mpi", "slurm.partition", "slurm.prologue",
    "slurm.qos", "slurm.reservation",
)  # fmt: skip
"""The same, except that YAML's null stays null."""

_NULLS = ("", "~", "null", "Null", "NULL")
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_INTEGER = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,40}|[0-9]{1,40}(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,4})?")


def load(path: Path, overrides: Sequence[str] = (), shown_as: str | None = None) -> Spec:
    """Read a job's YAML.

    Args:
        path: the file.
        overrides: ``a.b=c`` texts, applied in order.
        shown_as: what errors call the file; by default its path.

    Raises:
        UsageError: where the file cannot be read.
        SpecError: where it, or an override, is wrong; it holds every fault that was found.
    """
    source = shown_as or str(path)
    return load_text(_read(path, source), source, overrides, default_name=path.stem)


def load_text(text: str, source: str, overrides: Sequence[str] = (), default_name: str | None = None) -> Spec:
    """The same for text; ``default_name`` is the job's name where the text gives none."""
    return _spec_of(_tree(text, source, overrides), source, default_name)


def load_all(
    path: Path, overrides: Sequence[str] = (), shown_as: str | None = None, group_of: Callable[[str], str] = str
) -> list[Spec]:
    """Read a job's YAML with its variants: one spec for each combination of their values, all of one group.

    A file without variants is one spec.  The names of the jobs are ``name-order-rr-seed-0`` and the like.

    Args:
        path: the file.
        overrides: ``a.b=c`` texts, applied in order; a setting that varies cannot be set.
        shown_as: what errors call the file; by default its path.
        group_of: makes the group's name from the file's ``name``, where the file names no group.

    Raises:
        UsageError: where the file cannot be read.
        SpecError: where it, an override or a variant is wrong.
    """
    source = shown_as or str(path)
    return load_all_text(_read(path, source), source, overrides, path.stem, group_of)


def load_all_text(
    text: str,
    source: str,
    overrides: Sequence[str] = (),
    default_name: str | None = None,
    group_of: Callable[[str], str] = str,
) -> list[Spec]:
    """The same for text."""
    root = _tree(text, source, overrides)
    spec = _spec_of(root, source, default_name)
    trees = expanded_trees(spec, root, spec.group or group_of(spec.name))
    return [_spec_of(changed, source, default_name) for changed in trees] or [spec]


def _tree(text: str, source: str, overrides: Sequence[str]) -> Node:
    root = parse(text, source)
    if not isinstance(root.content, dict):
        raise SpecError([Problem(source, root.line, "", "a job is a mapping of settings, such as `command: python train.py`")])
    for override in overrides:
        root = apply(root, override, LITERAL, LITERAL_OR_NULL)
    return root


def _spec_of(root: Node, source: str, default_name: str | None) -> Spec:
    data = _sections(root, default_name)
    try:
        spec = Spec.model_validate(data, strict=True)
    except ValidationError as error:
        raise SpecError(describe(error, root)) from None
    return _with_hosts(spec.located(Places(source, places_of(root))))


def _with_hosts(spec: Spec) -> Spec:
    """The spec with the host file's hosts in the place of its path, so that a frozen spec needs no further file."""
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
    """Whether a section was named but left empty, which means its defaults."""
    return node.plain and node.content in _NULLS


def _split(text: str, node: Node) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SpecError([Problem(node.source, node.line, "command", f"cannot be split into arguments: {error}")]) from None


def _varied(path: str) -> str:
    """The setting that a value under ``variants`` is for; other paths as they are."""
    return path.removeprefix("variants.")


def _below(path: str, names: Sequence[str]) -> bool:
    return any(path == name or path.startswith(name + ".") for name in names)


def _value(node: Node, path: str) -> Any:
    """The node as plain data.  Recursion is bounded by the document's depth."""
    if isinstance(node.content, dict):
        return {key: _value(child, f"{path}.{key}") for key, child in node.content.items()}
    if isinstance(node.content, list):
        return [_value(child, f"{path}.{index}") for index, child in enumerate(node.content)]
    if not node.plain:
        return node.content
    path = _varied(path)
    if _below(path, LITERAL):
        return _literal_text(node, path)
    if _below(path, LITERAL_OR_NULL):
        return None if node.content in _NULLS else node.content
    return _scalar(node, path)


def _literal_text(node: Node, path: str) -> str:
    assert isinstance(node.content, str)
    if node.content in _NULLS:
        message = f"{node.content or 'nothing'} is YAML's null: put it in quotes if it is meant as text"
        raise SpecError([Problem(node.source, node.line, path, message)])
    return node.content


def _scalar(node: Node, path: str) -> Any:
    text = node.content
    assert isinstance(text, str)
    if text in _NULLS:
        return None
    if text in _TRUTH:
        return _TRUTH[text]
    if _LEADING_ZERO.fullmatch(text):
        message = f"{text} is octal to some YAML readers and decimal to others: write it without the leading zero"
        raise SpecError([Problem(node.source, node.line, path, message)])
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
