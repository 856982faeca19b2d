"""Started by mpirun with two ranks on one GPU: the designated rank balances there, and no training waits for it."""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from mpi4py import MPI

from hvdgrab.comm.mpi import MPICommunicator
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator.book import OrderBook
from hvdgrab.coordinator.build import build
from hvdgrab.coordinator.journal import Journal
from hvdgrab.coordinator.session import OrderingSession
from tests.coordinator.checks import literal_orders, whole_numbers
from tests.coordinator.simulate import FACTS

WORLD, DEVICE, EPOCHS = MPI.COMM_WORLD, torch.device("cuda", 0), 3
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()


def run(coordinator: str) -> dict[str, object]:
    """An epoch's units while a long kernel occupies the training's stream: none of them may wait for it."""
    gradients = whole_numbers(SIZE, 12, dimension=5000)
    config = GraBConfig(coordinator=coordinator, compression="none", pairs_per_message=2, bound="off")
    book = OrderBook(config, 12, RANK, SIZE)
    parts = build(config, book, 5000, DEVICE)
    session = OrderingSession(parts, book, FACTS, lambda: MPICommunicator(WORLD), Journal(None, 12), sys.exit)
    own = torch.from_numpy(gradients[RANK]).to(DEVICE)
    orders, waited = [], 0
    for epoch in range(EPOCHS):
        if book.is_over:
            session.begin_next_epoch()
        for number, (_, unit) in enumerate(book.units()):
            busy = epoch == 1 and number < 4  # two messages' worth: what more is ahead has to wait, by back-pressure
            if busy:
                torch.cuda._sleep(2**29)
                marker = torch.cuda.current_stream(DEVICE).record_event()
            session.unit(parts.views.of(own[unit]))
            waited += bool(busy and marker.query())
        orders.append(book.orders.tolist())
    balancer = parts.coordinator.balancer
    found = {
        "orders": orders == literal_orders(gradients, np.array(orders[0]), EPOCHS),
        "waited": waited,
        "backend": None if balancer is None else balancer.backend,
        "on device": None if balancer is None else balancer.running_sum.device.type,
    }
    assert session.close()
    return found


results = {name: WORLD.gather(run(name)) for name in ("designated", "replicated", "sharded")}
if RANK == 0:
    json.dump(results, sys.stdout)
