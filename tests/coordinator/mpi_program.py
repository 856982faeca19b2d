"""Started by mpirun, with the way to communicate: every check of `tests.coordinator.checks` with every coordinator.

For the server the last rank serves the others.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from hvdgrab.bench.gather import cards
from hvdgrab.comm.communicator import broadcast_bytes, gather_bytes
from hvdgrab.comm.connect import open_communicator
from hvdgrab.comm.link import MPILink, ServedCommunicator
from hvdgrab.comm.mpi import MPICommunicator
from hvdgrab.config import CommunicationConfig, GraBConfig
from hvdgrab.coordinator.served import Service, take_leave
from tests.coordinator.checks import CHECKS, COORDINATORS, Make
from tests.coordinator.simulate import Rank

WORLD = MPI.COMM_WORLD
CHUNK = 1000
"""Bytes of a message to the server: several make a payload."""


def run(check: Any, coordinator: str, connect: Any) -> Any:
    made: list[Rank] = []

    def make(gradients: Any, **settings: Any) -> Rank:
        dense = {} if coordinator == "sharded" else {"compression": "none"}
        config = GraBConfig(**{**dense, "coordinator": coordinator, **settings})
        ranks = connect()
        made.append(Rank(ranks, config, gradients[ranks.rank]))
        return made[-1]

    result = check(SIZE, make)
    assert all(rank.session.close() for rank in made), "a session did not end"
    return result


def outcome_of(coordinator: str, check: Any, connect: Any) -> tuple[str, Any]:
    try:
        return "", run(check, coordinator, connect)
    except Exception:
        return traceback.format_exc(), None


results: dict[str, list[str]] = {}


def note(name: str, outcome: tuple[str, Any], ranks: MPICommunicator) -> None:
    """Collect what a check came to on all ranks, on rank 0; without a wait that takes the processor from the others."""
    everyone = gather_bytes(ranks, json.dumps(outcome).encode())
    broadcast_bytes(ranks, b"")
    if everyone is not None:
        outcomes = [json.loads(one) for one in everyone]
        texts = [text for text, _ in outcomes if text]
        differ = [] if texts or all(one == outcomes[0] for one in outcomes) else ["the ranks' results differ"]
        results[name] = texts or differ


def bytes_of_sharded_differences(size: int, make: Make) -> Any:
    """What comes into this rank's host is little more than the parts of the others' differences that its ranks must have."""
    dimension, pairs = 10**6, 3
    gradients = np.zeros((size, 2 * pairs, dimension), dtype=np.float32)
    gradients[:, ::2] = np.random.default_rng(0).standard_normal(dimension, dtype=np.float32)
    rank = make(gradients, pairs_per_message=1, bound="off")
    units = rank.units()
    rank.give(next(units)[1])  # the handshake is over
    broadcast_bytes(ranks, b"")
    before = cards(Path("/proc/self/net/dev"))["eth0"].received
    for _, unit in units:
        rank.give(unit)
    rank.session.saved_state()  # waits for the end of the epoch
    received = cards(Path("/proc/self/net/dev"))["eth0"].received - before
    local = size // 2
    least = pairs * local * (size - local) * -(-dimension // size) * 4
    print(f"# {received / least:.4f} of the least bytes", file=sys.stderr)
    assert least <= received <= 1.1 * least, f"{received} bytes, {received / least:.3f} of the least"
    return None


def kept(communicator: Any) -> Any:
    """One communicator for many sessions: they do not close it."""
    communicator.close = lambda: None
    return communicator


SIZE = WORLD.Get_size()
HOW = CommunicationConfig(algorithm=sys.argv[1])  # type: ignore[arg-type]
everybody = MPICommunicator(WORLD)
ranks = kept(open_communicator(WORLD, HOW))
for coordinator in COORDINATORS:
    if coordinator != "server":
        for check in CHECKS:
            note(f"{coordinator}-{check.__name__}", outcome_of(coordinator, check, lambda: ranks), everybody)
if sys.argv[1] == "hierarchical":
    note("bytes", outcome_of("sharded", bytes_of_sharded_differences, lambda: ranks), everybody)
# The last one serves the others.
SERVES, SIZE = WORLD.Get_rank() == SIZE - 1, SIZE - 1
training, meeting = WORLD.Split(MPI.UNDEFINED if SERVES else 0, WORLD.Get_rank()), WORLD.Dup()
if SERVES:
    Service(MPILink(meeting, CHUNK)).run()
else:
    trainers, ranks = MPICommunicator(training), kept(open_communicator(training, HOW))
    for check in CHECKS:
        outcome = outcome_of("server", check, lambda: ServedCommunicator(ranks, MPILink(meeting, CHUNK)))
        note(f"server-{check.__name__}", outcome, trainers)
    take_leave(MPILink(meeting, CHUNK))
everybody.broadcast(np.zeros(1), 0)
if WORLD.Get_rank() == 0:
    json.dump(results, sys.stdout)
