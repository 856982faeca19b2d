"""Which job is meant: an id, a name, a group, or a unique beginning of an id or a group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from launcher.errors import UsageError
from launcher.jobdir.paths import ID_PATTERN

SHOWN = 5
"""Candidates that a message names."""


@dataclass(frozen=True)
class Known:
    """What finding a job needs to know of it."""

    id: str
    name: str
    group: str | None = None
    active: bool = False
    """Whether it has not ended."""


def resolve(wanted: str, known: Sequence[Known], *, prefer_active: bool = False) -> list[str]:
    """Ids of what is meant: one, or all of a group.

    Args:
        wanted: as the user wrote it.
        known: the jobs, oldest first.
        prefer_active: of several jobs of one name, take the newest that has not ended, where there is one.

    Raises:
        UsageError: where nothing fits, or several do.
    """
    if any(job.id == wanted for job in known):
        return [wanted]
    members = [job.id for job in known if job.group == wanted]
    if members:
        return members
    named = [job for job in known if wanted in (job.name, name_of(job.group))]
    if named:
        active = [job for job in named if job.active] if prefer_active else []
        newest = (active or named)[-1]
        return [newest.id] if newest.name == wanted else [job.id for job in known if job.group == newest.group]
    return _beginning(wanted, known)


def name_of(group: str | None) -> str | None:
    """The name in a group's id, as variants have it; None where the group's name is the user's own."""
    return group[:-21] if group is not None and re.fullmatch(ID_PATTERN, group) else None


def _beginning(wanted: str, known: Sequence[Known]) -> list[str]:
    matches = [job for job in known if wanted and job.id.startswith(wanted)]
    groups = {job.group for job in known if wanted and job.group is not None and job.group.startswith(wanted)}
    if len(groups) == 1 and all(job.group in groups for job in matches):
        return [job.id for job in known if job.group in groups]
    if len(matches) == 1 and not groups:
        return [matches[0].id]
    candidates = sorted({*(job.id for job in matches), *(group for group in groups if group)})
    if candidates:
        more = f" and {len(candidates) - SHOWN} more" if len(candidates) > SHOWN else ""
        raise UsageError(f"{wanted!r} fits {len(candidates)} jobs: {', '.join(candidates[:SHOWN])}{more}")
    raise UsageError(_nothing(wanted, known))


def _nothing(wanted: str, known: Iterable[Known]) -> str:
    import difflib

    names = {text for job in known for text in (job.id, job.name, job.group) if text}
    near = difflib.get_close_matches(wanted, sorted(names), n=1)
    return f"no job {wanted!r}; " + (f"did you mean {near[0]!r}?" if near else "`hvdgrab-launch ls` shows what is there")


def resolve_all(wanted: Sequence[str], known: Sequence[Known], *, prefer_active: bool = False) -> list[str]:
    """The same for several, each id once, in the order in which they were asked for."""
    ids = [id for text in wanted for id in resolve(text, known, prefer_active=prefer_active)]
    return list(dict.fromkeys(ids))
