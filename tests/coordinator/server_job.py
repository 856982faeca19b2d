"""A small training with a server: ``python -m tests.coordinator.server_job HOW DIRECTORY``, one process more than ranks.

``well`` trains to the end; ``die`` kills the server in the middle of epoch 1, ``abort`` a rank; ``resume`` goes on from the last
checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import hvdgrab

HOW, DIRECTORY = sys.argv[1], Path(sys.argv[2])
PROCESS = DIRECTORY / f"process-{os.environ['OMPI_COMM_WORLD_RANK']}"
PROCESS.write_text(str(os.getpid()))
hvdgrab.init()

import horovod.torch as hvd  # noqa: E402 - the server never comes here
import torch  # noqa: E402

from tests.training.jobs import build  # noqa: E402
from tests.training.ranks import Ranks  # noqa: E402

EPOCHS, SAVED_AT = 4, (1, 4)


def main() -> None:
    ranks = Ranks(hvd.size(), DIRECTORY)
    ranks.prefix = "server"
    job = build(ranks, examples=60, config={"coordinator": "server", "pairs_per_message": 2})
    checkpoint = DIRECTORY / "checkpoint"
    if HOW == "resume":
        saved = torch.load(checkpoint, weights_only=True)
        job.model.load_state_dict(saved["model"])
        job.optimizer.load_state_dict(saved["optimizer"])
    trail: list[list[int]] = []
    while job.sampler.next_epoch < EPOCHS:
        for features, classes in job.batches():
            job.train(features, classes)
            place = (job.sampler.epoch, job.sampler.book.position)
            trail.append([*place, job.units[-1].unit])
            if place == SAVED_AT and HOW != "resume":
                state = {"model": job.model.state_dict(), "optimizer": job.optimizer.state_dict()}
                if ranks.rank == 0:
                    torch.save(state, checkpoint)
            if HOW == "abort" and place == (1, 7) and ranks.rank == 1:
                (DIRECTORY / "end-1").write_text(str(time.time()))
                os.abort()
            if HOW == "die" and place == (1, 7) and ranks.rank == 0:
                (DIRECTORY / "end-0").write_text(str(time.time()))
                os.kill(int((DIRECTORY / f"process-{hvd.size()}").read_text()), signal.SIGKILL)
    (DIRECTORY / f"{HOW}-{ranks.rank}.json").write_text(json.dumps([trail, job.weights()]))
    job.optimizer.close()


main()
