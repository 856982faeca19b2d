"""The first unit: the ranks find out that they are one job, and take over a state that one of them has loaded."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hvdgrab import __version__
from hvdgrab.comm.communicator import Communicator, broadcast_bytes, gather_bytes
from hvdgrab.comm.worker import CommunicationThread
from hvdgrab.coordinator.book import OrderBook, named_ranks
from hvdgrab.coordinator.build import Parts
from hvdgrab.coordinator.ending import share_rows
from hvdgrab.coordinator.saved import SavedState, fetch_state
from hvdgrab.errors import ConsistencyError

_ADVICE = {
    "version": "install the same hvdgrab on every node",
    "settings": "every rank must get the same GraBConfig",
    "examples": "every rank must build the sampler over the whole dataset, not over its own part",
    "units": "every rank must pass the same batch_size",
    "dealing": "every rank must use the same seed and the same NumPy",
    "sketch": "the ranks' sketches of one vector differ: install the same NumPy and torch on every node",
    "parameters": "every rank must build the same model, with the same parameters trainable",
}


def greet(
    parts: Parts, book: OrderBook, facts: Mapping[str, Any], thread: CommunicationThread, loaded: SavedState | None
) -> SavedState | None:
    """Shake hands with the other ranks, in the training thread; collective.

    Args:
        parts: what the session is made of.
        book: where the rank stands.
        facts: what must be equal on all ranks.
        thread: talks to the others.
        loaded: the state that this rank has loaded.

    Returns:
        The state to go on from, the rank's own or that of another; the book is put in its place.

    Raises:
        ConsistencyError: the ranks are not one job.
    """
    sketch = None if parts.views.projection is None else parts.views.projection.digest()
    known = {"version": __version__, "settings": parts.config.model_dump_json(), "sketch": sketch, **facts}
    place = None if loaded is None else [loaded.epoch, loaded.position]
    greeting = thread.submit(lambda communicator: shake_hands(communicator, known, place))
    thread.submit(parts.coordinator.prepare)
    state_from = thread.wait(greeting, "the first unit of every rank")
    if parts.coordinator.announcement is not None:
        print(f"hvdgrab: {parts.coordinator.announcement} {parts.cost}", file=sys.stderr)
    if state_from is None:
        return loaded
    saved = thread.ask(
        functools.partial(fetch_state, saved=loaded, root=state_from), f"the state that rank {state_from} has loaded"
    )
    if loaded is None:
        _adopt(saved, book, facts)
    # Units on their way have changed this rank's own order: everyone must know it to make the next one.
    book.orders = thread.ask(functools.partial(share_rows, row=book.order), "the orders of all ranks")
    saved = saved.without_own_pairs()
    return _without_shard(saved, book) if parts.config.coordinator == "sharded" else saved


def _adopt(saved: SavedState, book: OrderBook, facts: Mapping[str, Any]) -> None:
    """Put the book in the place of another rank's state."""
    saved.check(book, facts)
    repeated = book.adopt(saved.epoch, saved.position, saved.orders)
    if repeated:
        print(
            f"hvdgrab: rank {book.rank}: rank 0's saved state arrived after {repeated} batches that epoch "
            f"{saved.epoch} has seen already had been drawn: it sees them twice, and as many others not at all. To avoid "
            "it, call load_state_dict on every rank",
            file=sys.stderr,
        )


def _without_shard(saved: SavedState, book: OrderBook) -> SavedState:
    """Drop the running sum, which is sharded: one rank's shard is useless alone."""
    if saved.balance is not None and saved.rank == book.rank and saved.position > 0:
        print(
            f"hvdgrab: the state that rank {saved.rank} alone has loaded holds its own part of the running sum: epoch "
            f"{saved.epoch} goes on after unit {saved.position} with a sum of zero. To continue exactly, save on every rank "
            "and load on every rank",
            file=sys.stderr,
        )
    return replace(saved, balance=None)


def shake_hands(communicator: Communicator, facts: Mapping[str, Any], saved_place: list[int] | None) -> int | None:
    """Compare ``facts`` (JSON-able) of all ranks; collective.

    Args:
        communicator: the ranks.
        facts: what must be equal, under the names of ``_ADVICE``.
        saved_place: [epoch, position] of the state that this rank has loaded, or None.

    Returns:
        The rank whose saved state the others take over; None if none has loaded one, or all have.

    Raises:
        ConsistencyError: on every rank, with the same text, naming the ranks that differ from rank 0.
    """
    mine = json.dumps({"facts": dict(facts), "saved": saved_place}).encode()
    everyone = gather_bytes(communicator, mine)
    answer = None if everyone is None else json.dumps(_judge([json.loads(one) for one in everyone])).encode()
    verdict = json.loads(broadcast_bytes(communicator, answer))
    if verdict["error"]:
        raise ConsistencyError(verdict["error"])
    state_from: int | None = verdict["state_from"]
    return state_from


def _judge(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    reference = ranks[0]["facts"]
    for name, advice in _ADVICE.items():
        others = [rank for rank, one in enumerate(ranks) if one["facts"][name] != reference[name]]
        if others:
            example = ranks[others[0]]["facts"][name]
            return _error(
                f"{name}: {_short(example)} on {named_ranks(others)}, but {_short(reference[name])} on rank 0; {advice}"
            )
    saved = [one["saved"] for one in ranks]
    without = [rank for rank, place in enumerate(saved) if place is None]
    if len(without) == len(ranks) or all(place == saved[0] for place in saved):
        return {"error": None, "state_from": None}
    if saved[0] is None:
        loaded = [rank for rank, place in enumerate(saved) if place is not None]
        return _error(f"{named_ranks(loaded)} loaded a state, but rank 0 did not: load it on all ranks, or on rank 0 alone")
    other = [rank for rank, place in enumerate(saved) if place is not None and place != saved[0]]
    if other:
        epoch, position = saved[other[0]]
        return _error(
            f"{named_ranks(other)} loaded a state at epoch {epoch}, unit {position}, but rank 0 one at epoch {saved[0][0]}, "
            f"unit {saved[0][1]}: load states of the same moment"
        )
    return {"error": None, "state_from": 0}


def _error(text: str) -> dict[str, Any]:
    return {"error": text, "state_from": None}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else text[:200] + "…"
