"""Whether an attempt ended because a host was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.attempt.watch import lost_hosts, spec_names
from launcher.host.processes import node_name
from launcher.jobdir import words
from launcher.jobdir.marks import RankMark
from launcher.jobdir.stop import Stop


def lost_node(marks: Sequence[RankMark | None], names: Mapping[str, str], unknown: Sequence[str]) -> Stop | None:
    """Why what had started the ranks ended by itself, where a host was lost; None where none was.

    Args:
        marks: by rank, after the end.
        names: how each host of the spec names itself, by its name in the spec.
        unknown: hosts, as the spec names them, that could not be asked after the end.
    """
    if any(mark is not None and mark.failed and not mark.stopped for mark in marks):
        return None
    known = [mark for mark in marks if mark is not None]
    away = {names[host] for host in unknown}
    cut_off = {mark.rank for mark in known if mark.stop_cause == words.STARTER_GONE and mark.host != node_name()}
    silent = cut_off | {mark.rank for mark in known if mark.exit_code is None and mark.host in away}
    lost = lost_hosts(known, silent, node_name())
    if not lost:
        return None
    shown = ", ".join(spec_names(lost, names))
    return Stop(words.LOST_NODE, "the supervisor", f"the connection to {shown} was lost", bad_hosts=lost)
