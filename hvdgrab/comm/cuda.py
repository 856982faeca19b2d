"""Whether MPI may be given addresses on the GPU: only where that was asked for, and after it has been seen to work.

By default everything goes through the host, which works everywhere.  An MPI without CUDA support that is given such an address
crashes, and one whose transports lack it delivers garbage; so the words of the build are not enough.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hvdgrab.errors import WorldError

if TYPE_CHECKING:
    from mpi4py import MPI

_ADVICE = "leave communication.cuda_aware out: payloads then go through the host, a few kilobytes a message with the sketch"


def refusal(gpus: Sequence[bool], supports: Sequence[bool | None], arrived: Callable[[], Sequence[bool]]) -> str:
    """Why addresses on the GPU may not be given to MPI, with advice; empty where they may.

    Args:
        gpus: of every rank, whether it has a GPU.
        supports: of every rank, whether its MPI says that it was built with CUDA support; None where it does not say.
        arrived: runs the self-test, on all ranks: of every rank, whether it received from its neighbour's GPU what that sent.
            Called only where neither of the others speaks against it.
    """
    if missing := _ranks(gpus):
        return f"communication.cuda_aware is set, but {missing} no GPU: {_ADVICE}"
    if without := _ranks([says is not False for says in supports]):
        return (
            f"communication.cuda_aware is set, but the MPI of {without.removesuffix(' has').removesuffix(' have')} was built "
            "without CUDA support (`ompi_info --parsable --all | grep mpi_built_with_cuda_support`): load the cluster's "
            f"CUDA-aware MPI and build mpi4py and Horovod against it, or {_ADVICE}"
        )
    if failed := _ranks(list(arrived())):
        return (
            f"communication.cuda_aware is set and MPI does not deny it, but {failed} not received what was sent from a GPU: "
            f"a transport lacks it (UCX: UCX_TLS must include cuda_copy), or {_ADVICE}"
        )
    return ""


def check(world: MPI.Intracomm) -> None:
    """Refuse ``communication.cuda_aware`` where it cannot work; collective.

    Raises:
        WorldError: on every rank.
    """
    import torch

    text = refusal(
        world.allgather(torch.cuda.is_available()), world.allgather(mpi_says()), lambda: world.allgather(_round_trip(world))
    )
    if text:
        raise WorldError(text)


def mpi_says() -> bool | None:
    """What Open MPI's own query answers; None where this MPI has none (MPICH and its kin)."""
    try:
        query: Any = ctypes.CDLL(None).MPIX_Query_cuda_support
    except AttributeError:
        return None
    return bool(query())


def _round_trip(world: MPI.Intracomm) -> bool:
    """Send a tensor from this GPU to the next rank's, and compare what the previous one sent."""
    import torch

    size, rank = world.Get_size(), world.Get_rank()
    own = torch.arange(4096, dtype=torch.float32, device="cuda") + rank
    received = torch.zeros_like(own)
    torch.cuda.synchronize()
    world.Sendrecv(own, (rank + 1) % size, 0, received, (rank - 1) % size, 0)
    expected = torch.arange(4096, dtype=torch.float32) + (rank - 1) % size
    return bool(torch.equal(received.cpu(), expected))


def _ranks(good: Sequence[bool]) -> str:
    """``rank 3 has`` or ``ranks 1, 3 have``: those that are not."""
    bad = [str(rank) for rank, fine in enumerate(good) if not fine]
    shown = ", ".join(bad if len(bad) <= 8 else [*bad[:8], "…"])
    return "" if not bad else f"rank {shown} has" if len(bad) == 1 else f"ranks {shown} have"
