"""The first unit: the ranks find out that they are one job, and take over a state that one of them has loaded."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from typing import Any

from hvdgrab import __version__
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator.book import OrderBook
from hvdgrab.coordinator.channel import Channel
from hvdgrab.coordinator.ending import share_rows
from hvdgrab.coordinator.handshake import shake_hands
from hvdgrab.coordinator.parts import Parts
from hvdgrab.coordinator.saved import SavedState, fetch_state


class Opening:
    """One rank's part in it, in the training thread.

    Args:
        config: the settings.
        book: where the rank stands.
        parts: made of the settings.
        facts: what must be equal on all ranks.
        channel: to the others.
    """

    def __init__(self, config: GraBConfig, book: OrderBook, parts: Parts, facts: dict[str, Any], channel: Channel) -> None:
        self._config, self._book, self._parts, self._facts, self._channel = config, book, parts, facts, channel

    def greet(self, loaded: SavedState | None) -> SavedState | None:
        """Shake hands with the other ranks; collective.

        Args:
            loaded: the state that this rank has loaded.

        Returns:
            The state to go on from, the rank's own or that of another; the book is put in its place.

        Raises:
            ConsistencyError: the ranks are not one job.
        """
        place = None if loaded is None else [loaded.epoch, loaded.position]
        greeting = self._channel.submit(lambda communicator: shake_hands(communicator, self._all_facts(), place))
        coordinator = self._parts.coordinator
        self._channel.submit(coordinator.prepare)
        verdict = self._channel.wait(greeting, "the first unit of every rank")
        if coordinator.announcement is not None:
            print(f"hvdgrab: {coordinator.announcement} {self._parts.said}", file=sys.stderr)
        return loaded if verdict.state_from is None else self._receive(loaded, verdict.state_from)

    def _receive(self, loaded: SavedState | None, root: int) -> SavedState:
        """Get the state that ``root`` alone has loaded, and go on from it; collective."""
        job = functools.partial(fetch_state, saved=loaded, root=root)
        saved = self._channel.ask(job, f"the state that rank {root} has loaded")
        if loaded is None:
            self._adopt(saved)
        # Units on their way have changed this rank's own order: everyone must know it to make the next one.
        rows = functools.partial(share_rows, row=self._book.order)
        self._book.orders = self._channel.ask(rows, "the orders of all ranks")
        return self._without_parts(saved.without_own_pairs())

    def _without_parts(self, saved: SavedState) -> SavedState:
        """Of a running sum whose parts lie on all ranks one part is worth nothing."""
        if self._config.coordinator != "sharded" or saved.balance is None:
            return saved
        if saved.rank == self._book.rank and saved.position > 0:
            print(
                f"hvdgrab: the state that rank {saved.rank} alone has loaded holds its own part of the running sum: epoch "
                f"{saved.epoch} goes on after unit {saved.position} with a sum of zero. To continue exactly, save on every rank "
                "and load on every rank",
                file=sys.stderr,
            )
        return replace(saved, balance=None)

    def _adopt(self, saved: SavedState) -> None:
        saved.check(self._book, self._facts)
        repeated = self._book.adopt(saved.epoch, saved.position, saved.orders)
        if repeated:
            print(
                f"hvdgrab: rank {self._book.rank}: rank 0's saved state arrived after {repeated} batches that epoch "
                f"{saved.epoch} has seen already had been drawn: it sees them twice, and as many others not at all. To avoid "
                "it, call load_state_dict on every rank",
                file=sys.stderr,
            )

    def _all_facts(self) -> dict[str, Any]:
        projection = self._parts.views.projection
        sketch = None if projection is None else projection.digest()
        return {"version": __version__, "settings": self._config.model_dump_json(), "sketch": sketch, **self._facts}
