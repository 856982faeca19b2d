"""Dividing a world: one process balances and does not train, the others are the ranks that Horovod counts."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from hvdgrab.comm.link import MPILink
from hvdgrab.errors import WorldError

if TYPE_CHECKING:
    from mpi4py import MPI

PATIENCE = 30.0
"""Seconds between two messages of a process that waits to learn the roles of the others."""
_ADVICE = "every training process must call hvdgrab.init() instead of hvd.init()"


@dataclass(frozen=True)
class Split:
    """This process's place in a divided world."""

    training: MPI.Intracomm
    """The ranks that train; COMM_NULL in the server."""
    meeting: MPI.Intracomm
    """All processes, the server last."""
    serves: bool
    """Whether this process is the server."""

    def link(self) -> MPILink:
        """Open this process's end of the link to the server, for one thread."""
        return MPILink(self.meeting)


_split: Split | None = None


def split_off() -> Split | None:
    """How this process's world was divided; None if it was not."""
    return _split


def split_world(serves: bool, wanted: bool) -> Split | None:
    """Divide COMM_WORLD if one process serves; collective.

    Args:
        serves: this process was started as a server.
        wanted: this process's settings ask for a server; if no process was started as one, the last becomes the server.

    Raises:
        WorldError: there are several servers, no process trains, or the settings do not ask for the server.
    """
    global _split
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    roles = _everyones_role(world, int(serves) + 2 * int(wanted))
    server = choose_server(roles)
    if server is None:
        return None
    mine = world.Get_rank() == server
    training = world.Split(MPI.UNDEFINED if mine else 0, world.Get_rank())
    meeting = world.Split(0, world.Get_rank() + (world.Get_size() if mine else 0))
    _split = Split(cast("MPI.Intracomm", training), cast("MPI.Intracomm", meeting), mine)
    return _split


def choose_server(roles: Sequence[int]) -> int | None:
    """Choose the process that serves; None if there is to be no server.

    Args:
        roles: for every process, 1 if it was started as a server, plus 2 if its settings ask for one.

    Raises:
        WorldError: see `split_world`; in every process.
    """
    servers = [rank for rank, role in enumerate(roles) if role & 1]
    asking = [rank for rank, role in enumerate(roles) if role & 2 and not role & 1]
    trains = len(roles) - len(servers)
    if not servers and not asking:
        return None
    if len(servers) > 1:
        raise WorldError(f"processes {', '.join(map(str, servers))} were all started as servers: a job has one")
    if not trains or (not servers and trains == 1):
        raise WorldError(
            "coordinator 'server' needs a process that does not train and at least one that does: start one more than there are "
            "training ranks"
        )
    if servers and len(asking) < trains:
        raise WorldError(
            f"process {servers[0]} was started as a server, but not every training process has coordinator 'server' in its "
            "settings: set grab.coordinator: server, or start no server"
        )
    if len(asking) < trains:
        raise WorldError("some processes have coordinator 'server' in their settings, others do not: give all of them the same")
    return servers[0] if servers else len(roles) - 1


def _everyones_role(world: MPI.Intracomm, role: int) -> list[int]:
    """Gather the roles, with warnings while it waits: a training program that calls hvd.init() itself never answers."""
    roles = np.zeros(world.Get_size(), dtype=np.int64)
    request = world.Iallgather(np.array([role], dtype=np.int64), roles)
    began, next_warning = time.monotonic(), PATIENCE
    while not request.Test():
        time.sleep(1e-3)
        if time.monotonic() - began > next_warning:
            print(
                f"hvdgrab: process {world.Get_rank()} has waited {next_warning:.0f} s to learn which processes train or serve: "
                f"{_ADVICE}",
                file=sys.stderr,
                flush=True,
            )
            next_warning += PATIENCE
    counted: list[int] = roles.tolist()
    return counted
