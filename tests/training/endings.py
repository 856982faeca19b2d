"""A small training that ends in the way that its first argument names: ``python -m tests.training.endings HOW DIRECTORY``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd

hvd.init()

import hvdgrab.comm.worker  # noqa: E402 - as scripts do: Horovod first
import hvdgrab.training.exit  # noqa: E402
from hvdgrab.comm.mpi import MPICommunicator  # noqa: E402
from tests.training.jobs import build  # noqa: E402
from tests.training.ranks import Ranks  # noqa: E402


def say(directory: Path, what: str) -> None:
    """Note when this rank came to ``what``."""
    (directory / f"{what}-{hvd.rank()}").write_text(str(time.time()))


def receive_late() -> None:
    """Rank 0 comes late to messages in which the others have long put their part, and left."""
    gather = MPICommunicator.gather

    def late(*arguments: Any) -> None:
        time.sleep(0.3)
        gather(*arguments)

    MPICommunicator.gather = late


def main(how: str, directory: Path) -> None:
    hvdgrab.comm.worker.UNHEARD_SECONDS, hvdgrab.training.exit.EXIT_TIMEOUT = 4.0, 6.0  # real jobs have more patience
    ranks = Ranks(hvd.size(), directory)
    ranks.prefix = "ending"
    job = build(ranks, examples=80, batch=2)
    last = hvd.rank() == hvd.size() - 1
    for epoch in range(3):
        for number, (features, classes) in enumerate(job.batches()):
            if last and (epoch, number) == (1, 5):
                say(directory, "end")
                if how == "raise":
                    raise LookupError("the data of this rank are gone")
                if how == "exit":
                    sys.exit(3)
                if how == "leave":
                    break
                if how == "kill":
                    os.abort()
            job.train(features, classes)
    say(directory, "done")
    if how == "late" and hvd.rank() == 0:
        receive_late()
    if how == "shutdown":
        hvd.barrier()  # one rank's shutdown is everybody's: the other may still be in its last backward pass
        hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
