"""What travels: checked here, so that nothing strange reaches the record.  The OpenAPI document is made from it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from launcher.jobdir.paths import ID_PATTERN, NAME_PATTERN

PRIORITY_MOST = 1_000_000
ENVIRONMENT_MOST = 4 << 20
"""Bytes of a submitter's environment."""


def _text(value: str) -> str:
    if "\0" in value:
        raise ValueError("holds a zero byte")
    return value


def _environment(value: Any) -> dict[str, str]:
    """Checked by hand: values may hold bytes that are no text, which stand as lone surrogates (PEP 383)."""
    if not isinstance(value, dict):
        raise ValueError("must be an object of names and values")
    size = 0
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str) or not name or "=" in name or "\0" in name + text:
            raise ValueError("must hold names without = and values without zero bytes, both text")
        try:
            size += len(name.encode("utf-8", "surrogateescape")) + len(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            raise ValueError("holds half of a character pair, which stands for no bytes") from None
    if size > ENVIRONMENT_MOST:
        raise ValueError(f"is larger than {ENVIRONMENT_MOST} bytes")
    return value


JobId = Annotated[str, Field(pattern=f"^{ID_PATTERN}$", max_length=100)]
Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$", max_length=64)]
Group = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Environment = Annotated[
    Any, AfterValidator(_environment), WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}})
]


class SubmissionBody(BaseModel):
    """A job directory that is written, and what cannot be in it."""

    model_config = ConfigDict(extra="forbid")

    id: JobId
    dir: Annotated[str, Field(min_length=1, max_length=4096, pattern="^/"), AfterValidator(_text)]
    """The job directory, absolute; its name is the id, and it holds spec.yaml and plan.json."""
    environment: Environment
    """The submitter's whole environment, secrets included; never shown again."""
    priority: Annotated[int, Field(ge=-PRIORITY_MOST, le=PRIORITY_MOST)] = 0
    depends_on: Annotated[list[JobId], Field(max_length=1000)] = []
    group: Group | None = None


class RetryBody(BaseModel):
    """What a job needs to be started again."""

    model_config = ConfigDict(extra="forbid")

    environment: Environment


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str
