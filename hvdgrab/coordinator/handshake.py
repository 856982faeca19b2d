"""The ranks' first exchange: are they one job, and does one of them bring a saved state?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hvdgrab.comm.communicator import Communicator, broadcast_bytes, gather_bytes
from hvdgrab.coordinator.book import named_ranks
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


@dataclass(frozen=True)
class Verdict:
    """What the ranks agreed on."""

    state_from: int | None
    """The rank whose saved state the others take over; None where none or all have loaded one."""


def shake_hands(communicator: Communicator, facts: Mapping[str, Any], saved_place: list[int] | None) -> Verdict:
    """Compare ``facts`` (JSON-able) of all ranks; collective.

    Args:
        communicator: the ranks.
        facts: what must be equal, under the names of ``_ADVICE``.
        saved_place: [epoch, position] of the state that this rank has loaded, or None.

    Raises:
        ConsistencyError: on every rank, with the same text, naming the ranks that differ from rank 0.
    """
    mine = json.dumps({"facts": dict(facts), "saved": saved_place}).encode()
    everyone = gather_bytes(communicator, mine)
    answer = None if everyone is None else json.dumps(_judge([json.loads(one) for one in everyone])).encode()
    verdict = json.loads(broadcast_bytes(communicator, answer))
    if verdict["error"]:
        raise ConsistencyError(verdict["error"])
    return Verdict(verdict["state_from"])


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
