"""A process that balances the pairs of the others and does not train: ``coordinator: server``.

Either the job starts one more process of the training program, whose last then serves, because all of them call `init`; or it
starts this module as a program of its own beside them::

    export HVDGRAB_GRAB='{"coordinator": "server"}'
    mpirun -x HVDGRAB_GRAB -np 4 python train.py : -np 1 python -m hvdgrab.server

The settings come from the training ranks.  The process ends with theirs; if it fails, the job ends.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
from typing import Any

from hvdgrab.comm.split import Split, split_world
from hvdgrab.comm.world import check_one_library, end_job, launched_size
from hvdgrab.config import GraBConfig
from hvdgrab.errors import CommunicatorClosed, WorldError
from hvdgrab.training.job import ignore_requests


def init(process_sets: Any = None, *, server: bool | None = None) -> None:
    """Initialise Horovod over the processes that train: instead of ``hvd.init()``, before anything else that talks.

    In a job whose settings ask for ``coordinator: server`` one process serves: it does not return from here, and ends with code 0
    when the others have ended.  In any other job this is ``hvd.init()``.

    Args:
        process_sets: for ``hvd.init``.
        server: whether one process serves; by default as the job's YAML says.

    Raises:
        WorldError: no rank is left to serve or to train, Horovod or mpi4py is missing, or Horovod is initialised already.
    """
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise WorldError(f"hvdgrab.init() initialises Horovod, which cannot be imported: {error}") from None
    wanted = GraBConfig.from_environment().coordinator == "server" if server is None else server
    if launched_size(os.environ) == 1 and not wanted:
        hvd.init(process_sets=process_sets)
        return
    if hvd.is_initialized():
        raise WorldError("hvd.init() was called before hvdgrab.init(): leave it out, hvdgrab.init() calls it")
    split = _split(wanted)
    if split is None:
        hvd.init(process_sets=process_sets)
        return
    if split.serves:
        serve(split)
        sys.exit(0)
    atexit.register(_leave, split, os.getpid())
    hvd.init(comm=split.training, process_sets=process_sets)


def _split(wanted: bool) -> Split | None:
    try:
        importlib.import_module("mpi4py.MPI")
    except ImportError as error:
        if not wanted:
            return None  # what needs mpi4py later raises its own error
        raise WorldError(f"a server is talked to over mpi4py, which cannot be imported: {error}") from None
    check_one_library("hvdgrab.init()")
    return split_world(serves=False, wanted=wanted)


def serve(split: Split) -> None:
    """Balance until the training ranks have left; an error here ends the job."""
    from hvdgrab.coordinator.served import Service

    ignore_requests()
    try:
        Service(split.link()).run()
    except BaseException as error:
        end_job(error)
        raise


def _leave(split: Split, process: int) -> None:
    """Tell the server that this process ends, unless this is a fork of it."""
    from hvdgrab.coordinator.served import take_leave

    if os.getpid() == process:
        with contextlib.suppress(CommunicatorClosed):
            take_leave(split.link())


def main() -> None:
    """Serve; the program of ``python -m hvdgrab.server``."""
    split = split_world(serves=True, wanted=False)
    assert split is not None, "a process that was started as a server serves"
    serve(split)


if __name__ == "__main__":
    main()
