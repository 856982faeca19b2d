"""The training ranks' side of a server that balances their pairs; the server's own is `hvdgrab.coordinator.service`."""

from __future__ import annotations

import enum
import io
import json
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab import __version__
from hvdgrab.balance.base import to_arrays, to_tensors
from hvdgrab.comm.communicator import Communicator
from hvdgrab.comm.link import EMPTY, Body, Link, Row, ServedCommunicator
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator.messages import Header, Kind, PairMessage
from hvdgrab.coordinator.payloads import PayloadState
from hvdgrab.coordinator.signs import unpack_signs
from hvdgrab.coordinator.state import Balance, Signs
from hvdgrab.errors import WorldError


class Ask(enum.IntEnum):
    """What a rank sends the server; the first number of a row, a `Header` or zeros follow.  The server answers in order."""

    GREET = 1
    """The run's settings; answered by what the server says of itself."""
    PAIRS = 2
    """Seen flags and payloads of a message."""
    END = 3
    """The epoch has ended; answered by the signs of all ranks."""
    STATE = 4
    """What must be saved; answered by signs and balance."""
    RESTORE = 5
    """What was saved."""
    LEAVE = 6
    """This process ends."""


def row_of(ask: Ask, header: Header | None = None, epoch: int = 0) -> Row:
    """(7,) int64."""
    rest = Header(Kind.END, epoch, 0, 0, 0, 0) if header is None else header
    return np.concatenate([[int(ask)], rest.row()])


def pack(value: dict[str, Any]) -> Body:
    """Plain numbers, strings and NumPy arrays as bytes."""
    file = io.BytesIO()
    torch.save(to_tensors(value), file)
    return np.frombuffer(file.getvalue(), dtype=np.uint8)


def unpack(body: Body) -> dict[str, Any]:
    """What `pack` was given."""
    value: dict[str, Any] = to_arrays(torch.load(io.BytesIO(body.tobytes()), weights_only=True))
    return value


class ServedCoordinator(PayloadState):
    """CD-GraB by a process that does not train: payloads go to it, sign bits come back.

    Args:
        config: the run's settings, from which the server makes what it needs.
        dimension: d.
        others: as for `PayloadState`.
    """

    def __init__(self, config: GraBConfig, units: int, dimension: int, **others: Any) -> None:
        super().__init__(dimension=dimension, **others)
        self._greeting = {
            "version": __version__,
            "config": config.model_dump_json(),
            "ranks": len(self.signs),
            "units": units,
            "dimension": dimension,
        }

    def prepare(self, communicator: Communicator) -> None:
        """See `Coordinator.prepare`: tell the server what to do.

        Raises:
            WorldError: the job has no server, or that one cannot do it.
        """
        link = _link(communicator)
        link.send(link.server, row_of(Ask.GREET), np.frombuffer(json.dumps(self._greeting).encode(), dtype=np.uint8))
        answer = _answer(link, Ask.GREET).tobytes().decode()
        if answer:
            raise WorldError(answer)

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Send the payloads to the server."""
        link = _link(communicator)
        body = np.concatenate([message.seen.view(np.uint8), self.encode(message).reshape(-1)])
        link.send(link.server, row_of(Ask.PAIRS, message.header), body)
        self.bytes_sent += body.size

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """See `Coordinator.finish`: only the sign bits travel back, which are counted here."""
        link = _link(communicator)
        link.send(link.server, row_of(Ask.END, end))
        body = _answer(link, Ask.END)
        self.bytes_sent += body.size
        return unpack_signs(body, self.signs.shape)

    def saved(self, communicator: Communicator | None, epoch: int) -> tuple[Signs, dict[str, Any] | None]:
        """See `Coordinator.saved`: the server is asked, when it has balanced all that this rank has sent."""
        if communicator is None:
            return self.signs.copy(), None
        link = _link(communicator)
        link.send(link.server, row_of(Ask.STATE, epoch=epoch))
        state = unpack(_answer(link, Ask.STATE))
        signs: Signs = state["signs"]
        return signs, state["balance"]

    def restore(self, communicator: Communicator, epoch: int, signs: Signs, balance: Balance | None) -> None:
        """See `Coordinator.restore`: rank 0 tells the server."""
        if communicator.rank == 0:
            link = _link(communicator)
            state = {"signs": signs, "balance": None if balance is None else dict(balance)}
            link.send(link.server, row_of(Ask.RESTORE, epoch=epoch), pack(state))


def take_leave(link: Link) -> None:
    """Tell the server that this process ends."""
    link.send(link.server, row_of(Ask.LEAVE), EMPTY)


def _answer(link: Link, ask: Ask) -> Body:
    """The server's answer, without those that a session before this one did not wait for."""
    while True:
        message = link.receive(link.server)
        if message.row[0] == ask:
            return message.body


def _link(communicator: Communicator) -> Link:
    if not isinstance(communicator, ServedCommunicator):
        raise WorldError(
            "coordinator 'server' needs a process that does not train: start one more than there are training ranks, and call "
            "hvdgrab.init() instead of hvd.init() (or start `python -m hvdgrab.server` as a program of its own)"
        )
    return communicator.link
