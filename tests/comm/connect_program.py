"""Started by mpirun: opens a communicator with the settings in argv[1] (JSON); argv[2] says what to do with it then."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

from hvdgrab.comm.connect import open_communicator
from hvdgrab.config import CommunicationConfig

comm = open_communicator(MPI.COMM_WORLD, CommunicationConfig(**json.loads(sys.argv[1])))
action = sys.argv[2]
everyone = np.zeros((comm.size, 10**5))
comm.allgather(np.full(10**5, comm.rank + 1.0), everyone)
assert (everyone == np.arange(1, comm.size + 1)[:, None]).all()
if action == "die" and comm.rank == comm.size - 1:
    os.kill(os.getpid(), signal.SIGKILL)
if action != "end":
    comm.broadcast(np.zeros(1), comm.size - 1)
    time.sleep(60)
if comm.rank == 0:
    print(type(comm).__name__)
