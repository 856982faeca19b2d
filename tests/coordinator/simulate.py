"""Whole runs of W ranks as threads: books, sessions and gradients, without models."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Communicator
from hvdgrab.comm.link import ServedCommunicator
from hvdgrab.comm.simulated import ThreadCommunicator, ThreadLink, run_ranks, thread_links
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator.book import OrderBook
from hvdgrab.coordinator.build import build
from hvdgrab.coordinator.journal import Journal
from hvdgrab.coordinator.served import Service, take_leave
from hvdgrab.coordinator.session import OrderingSession

FACTS = {"examples": 0, "units": 0, "dealing": "", "parameters": ""}


@dataclass
class Rank:
    """One simulated rank; ``epoch`` drives it."""

    communicator: Communicator
    config: GraBConfig
    gradients: NDArray[np.float32]
    """(n, d): of this rank's units; the same in every epoch."""
    facts: dict[str, Any] = field(default_factory=lambda: dict(FACTS))
    unheard: list[BaseException] = field(default_factory=list)
    told: threading.Event = field(default_factory=threading.Event)
    """Set with the first entry of ``unheard``."""

    def __post_init__(self) -> None:
        n, d = self.gradients.shape
        rank, size = self.communicator.rank, self.communicator.size
        self.book = OrderBook(self.config, n, rank, size)
        self.journal = Journal(None, n)
        parts = build(self.config, self.book, d)
        self.session = OrderingSession(parts, self.book, self.facts, self._connect, self.journal, self._end)

    def give(self, unit: int | None) -> None:
        """A unit's gradient to the session; None: the unit had none."""
        gradient = None if unit is None else self.session.parts.views.of(torch.from_numpy(self.gradients[unit]))
        self.session.unit(gradient)

    def _end(self, error: BaseException) -> None:
        self.unheard.append(error)
        self.told.set()

    def _connect(self) -> Communicator:
        return self.communicator

    def units(self) -> Iterator[tuple[int, int]]:
        """(epoch, unit) of the epoch, or of the next one if this one is over; as the sampler asks for them."""
        if self.book.is_over:
            self.session.begin_next_epoch()
        yield from self.book.units()

    def epoch(self, stop_after: int | None = None) -> list[int]:
        """Run an epoch, or the rest of one, at most ``stop_after`` units; the units in the order in which they came."""
        seen = []
        for _, unit in self.units():
            self.give(unit)
            seen.append(unit)
            if len(seen) == stop_after:
                break
        return seen


def simulate(gradients: NDArray[np.float32], work: Callable[[Rank], Any], timeout: float = 60.0, **settings: Any) -> list[Any]:
    """Run ``work`` on every rank of gradients (W, n, d) and return its results in rank order; sessions are closed afterwards.

    With ``coordinator="server"`` a further thread serves.
    """
    whole = {**({} if settings.get("coordinator") == "sharded" else {"compression": "none"}), **settings}
    config = GraBConfig(**whole)

    def on_rank(communicator: ThreadCommunicator) -> Any:
        link = None if ends is None else ends[communicator.rank]
        rank = Rank(communicator if link is None else ServedCommunicator(communicator, link), config, own(communicator.rank))
        result = work(rank)
        assert rank.session.close(timeout=timeout)
        if link is not None:
            take_leave(link)
        return result

    def own(rank: int) -> NDArray[np.float32]:
        return np.ascontiguousarray(gradients[rank])

    before = threading.active_count()
    with serving(len(gradients)) if config.coordinator == "server" else contextlib.nullcontext() as ends:
        results = run_ranks(len(gradients), on_rank, timeout)
    assert threading.active_count() <= before + 1, "a communication thread outlived its session"
    return results


@contextlib.contextmanager
def serving(ranks: int) -> Iterator[list[ThreadLink]]:
    """A server thread, and the links of ``ranks`` ranks to it; raises what the server raised."""
    *ends, link = thread_links(ranks)
    raised: list[BaseException] = []

    def serve() -> None:
        try:
            Service(link).run()
        except BaseException as error:
            raised.append(error)
            for end in ends:
                end.cancel()

    thread = threading.Thread(target=serve, name="server", daemon=True)
    thread.start()
    try:
        yield ends
    except BaseException as error:
        link.cancel()
        thread.join(10.0)
        if raised and not raised[0].args[0].endswith("is closed"):
            raise raised[0] from error
        raise
    thread.join(10.0)
    assert not thread.is_alive(), "the server goes on though all ranks have left"
    if raised:
        raise raised[0]
