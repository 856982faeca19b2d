"""Types of single settings, each with its check and with what an editor may be told about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from launcher.jobdir.paths import ID_PATTERN, NAME_PATTERN, NAME_RULE
from launcher.spec.hosts import expand_nodelist, parse_hosts
from launcher.spec.variables import HOROVOD_PLACE, check_argument, check_variable_name, check_variable_value

MAX_VARIANTS = 512
MAX_VALUES = 256
MAX_SETTINGS = 16
SHORT_PATHS = {"order": "grab.order", "seed": "grab.seed"}
"""Settings that may be named without their section."""
NOT_VARIED = ("version", "name", "variants", "group", "depends_on", "priority")
SIGNALS = ("USR1", "USR2", "TERM", "INT", "HUP", "CONT")
"""Signals that may announce a coming end to the training."""


def at_key(key: str, message: str) -> PydanticCustomError:
    """Make the error for one setting below the one that is being checked; `launcher.spec.problems` finds its line."""
    return PydanticCustomError("at_key", "{message}", {"key": key, "message": message})


def _count_or(word: str, smallest: int, largest: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if value == word or (type(value) is int and smallest <= value <= largest):
            return value
        raise ValueError(f"must be a whole number from {smallest} to {largest}, or {word}")

    return check


def _count_schema(word: str, smallest: int, largest: int) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "integer", "minimum": smallest, "maximum": largest}, {"const": word}]})


def check_name(value: str) -> str:
    """Return the name if it may be one.  Raises ValueError."""
    if not re.fullmatch(NAME_PATTERN, value):
        raise ValueError(NAME_RULE)
    return value


def _job(value: str) -> str:
    if not re.fullmatch(NAME_PATTERN, value) and not re.fullmatch(ID_PATTERN, value):
        raise ValueError(f"must be a job's name or id; {NAME_RULE}")
    return value


def _word(value: str) -> str:
    check_argument(value)
    if not value or value.startswith("-") or len(value) > 1_024 or re.search(r"[\s\x00-\x1f\x7f\"'\\`$;]", value):
        raise ValueError("must be one word without spaces, quotes, $ or ;, and not start with a dash")
    return value


def _line(value: str) -> str:
    check_argument(value)
    if re.search(r"[\r\n]", value):
        raise ValueError("must be a single line")
    return value


def _option(value: str) -> str:
    if not _line(value).startswith("-"):
        raise ValueError(f"must be an option, such as --exclusive or --tmp=10G (given: {value[:60]!r})")
    return value


def _lines(value: Any) -> Any:
    return value.splitlines() if isinstance(value, str) else value


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _joined(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return value


def _hosts(value: str) -> str:
    parse_hosts(value)
    return value


def _nodelist(value: str) -> str:
    expand_nodelist(value)
    return value


def _signal(value: str) -> str:
    name = value.removeprefix("SIG")
    if name not in SIGNALS:
        raise ValueError(f"must be one of {', '.join(SIGNALS)}, or null (given: {value[:30]!r})")
    return name


def _horovod_name(value: str) -> str:
    name = value if value.startswith("HOROVOD_") else f"HOROVOD_{value}"
    check_variable_name(name)
    if name in HOROVOD_PLACE:
        raise ValueError(f"{name} is set by Horovod itself")
    return name


def _whole(value: Any) -> Any:
    """Refuse true, which Python, and pydantic with it, takes for 1."""
    if type(value) is not int:
        raise ValueError("must be a whole number")
    return value


def once_each(value: Any) -> Any:
    """Refuse a mapping that holds a variable of Horovod under both its names.  Raises ValueError."""
    for name in value if isinstance(value, dict) else ():
        if isinstance(name, str) and f"HOROVOD_{name}" in value:
            raise ValueError(f"{name} and HOROVOD_{name} are the same: remove one of the two")
    return value


def flatten(value: Any) -> Any:
    """Write sections out as dotted paths; what is no mapping stays as it is, for the model to refuse."""
    if not isinstance(value, dict):
        return value
    flat: dict[str, Any] = {}
    stack = [("", value)]
    while stack:
        prefix, mapping = stack.pop()
        for key, below in mapping.items():
            path = f"{prefix}{key}"
            if isinstance(below, dict) and below:
                stack.append((f"{path}.", below))
            else:
                flat[path] = below
    return flat


def check_variants(value: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the variants by full path, if they make a bounded number of jobs.  Raises ValueError."""
    result: dict[str, list[Any]] = {}
    total = 1
    if len(value) > MAX_SETTINGS:
        raise ValueError(f"{len(value)} settings vary; {MAX_SETTINGS} are the most")
    for key, values in value.items():
        path = SHORT_PATHS.get(key, key)
        _check_path(key, path, result)
        if not 1 <= len(values) <= MAX_VALUES:
            raise at_key(key, f"needs 1 to {MAX_VALUES} values, not {len(values)}")
        if len({repr(one) for one in values}) < len(values):
            raise at_key(key, "a value stands there twice")
        total *= len(values)
        if total > MAX_VARIANTS:
            raise at_key(key, f"with this the variants make more than {MAX_VARIANTS} jobs")
        result[path] = values
    return result


def _check_path(key: str, path: str, known: Mapping[str, Any]) -> None:
    first = path.split(".")[0]
    if first in NOT_VARIED:
        raise at_key(key, f"{first} cannot be varied")
    if path in known:
        raise at_key(key, f"the same setting as {path}, which is given too")


def _some(values: Sequence[Any]) -> dict[str, Any]:
    return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}], "examples": list(values)}


Ranks = Annotated[int | Literal["auto"], PlainValidator(_count_or("auto", 1, 65_536)), _count_schema("auto", 1, 65_536)]
Threads = Annotated[int | Literal["auto"], PlainValidator(_count_or("auto", 1, 4_096)), _count_schema("auto", 1, 4_096)]
Budget = Annotated[
    int | Literal["unlimited"], PlainValidator(_count_or("unlimited", 0, 10**6)), _count_schema("unlimited", 0, 10**6)
]
"""How often something may happen."""
Name = Annotated[str, AfterValidator(check_name)]
JobReference = Annotated[str, AfterValidator(_job)]
Argument = Annotated[str, AfterValidator(check_argument)]
VariableName = Annotated[str, AfterValidator(check_variable_name)]
VariableValue = Annotated[str, AfterValidator(check_variable_value)]
Word = Annotated[str, AfterValidator(_word)]
"""One word that becomes the value of an option or variable."""
WordList = Annotated[str, BeforeValidator(_joined), AfterValidator(_word), WithJsonSchema(_some(["mlx5_0:1"]))]
"""Words, as a list or with commas between them; kept with commas."""
HostItem = Annotated[str, AfterValidator(_hosts)]
NodeList = Annotated[str, BeforeValidator(_joined), AfterValidator(_nodelist), WithJsonSchema(_some(["n[1-3],n7"]))]
Option = Annotated[str, AfterValidator(_option)]
Lines = Annotated[list[Annotated[str, AfterValidator(_line)]], BeforeValidator(_lines), WithJsonSchema(_some([]))]
SignalName = Annotated[str, AfterValidator(_signal), WithJsonSchema({"enum": [*SIGNALS, *(f"SIG{name}" for name in SIGNALS)]})]
HorovodName = Annotated[str, AfterValidator(_horovod_name)]
Whole = BeforeValidator(_whole)
"""For numbers of which only some are valid."""
OneOrMore = BeforeValidator(_one_or_more)
"""A single text stands for a list that holds it."""
Verbatim = object()
"""Marks settings whose text is taken as it stands: YAML's null must be quoted there, and means no absence."""
