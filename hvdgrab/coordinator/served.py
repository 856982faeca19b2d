"""CD-GraB by a process that does not train: the training ranks' coordinator, and the service that balances for them.

`hvdgrab.server` starts the service.
"""

from __future__ import annotations

import enum
import io
import json
import sys
from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab import __version__
from hvdgrab.balance.base import to_arrays, to_tensors
from hvdgrab.comm.communicator import Communicator
from hvdgrab.comm.link import EMPTY, Body, Link, Message, Row, ServedCommunicator
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator.coordinators import Balance
from hvdgrab.coordinator.gradient import CPU
from hvdgrab.coordinator.payloads import Format, PayloadState
from hvdgrab.coordinator.wire import Header, Kind, PairMessage, Signs, compare_headers, pack_signs, unpack_signs
from hvdgrab.errors import ConsistencyError, HvdGrabError, WorldError


class Ask(enum.IntEnum):
    """What a rank sends the server: the first number of a row; a `Header` or zeros follow.  The server answers in order."""

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
    """The value that `pack` was given."""
    value: dict[str, Any] = to_arrays(torch.load(io.BytesIO(body.tobytes()), weights_only=True))
    return value


class ServedCoordinator(PayloadState):
    """The training ranks' side: payloads go to the server, sign bits come back.

    Args:
        config: the run's settings, from which the server makes what it needs.
        units: n.
        format, others: as for `PayloadState`.
    """

    def __init__(self, config: GraBConfig, units: int, format: Format, **others: Any) -> None:
        super().__init__(format=format, **others)
        self._greeting = {
            "version": __version__,
            "config": config.model_dump_json(),
            "ranks": len(self.signs),
            "units": units,
            "dimension": format.dimension,
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
        """See `Coordinator.saved`: the server answers when it has balanced all that this rank has sent."""
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


class Service:
    """Answers the ranks.

    Each rank's messages are taken in order.  A message of pairs and the end of an epoch wait for those of all other ranks.  A
    rank that asks for the state is answered when everything that it has sent is balanced.

    Args:
        link: the server's end.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: list[deque[Message]] = [deque() for _ in range(link.server)]
        self._state: PayloadState | None = None
        self._epoch = 0

    def run(self) -> None:
        """Serve until all ranks have left.

        Raises:
            ConsistencyError: the ranks are not at the same place.
            PayloadError: a payload is damaged.
        """
        while not self._all_left():
            message = self._link.receive()
            self._waiting[message.sender].append(message)
            while self._work():
                pass

    def _work(self) -> bool:
        """Do what the oldest messages of all ranks allow; returns whether that was anything."""
        for waiting in self._waiting:
            ask = Ask(int(waiting[0].row[0])) if waiting else None
            if ask in (Ask.STATE, Ask.RESTORE):
                self._serve_one(ask, waiting.popleft())
                return True
        if not all(self._waiting) or self._all_left():
            return False
        asked = {Ask(int(waiting[0].row[0])) for waiting in self._waiting}
        if Ask.LEAVE in asked:  # nobody will complete what the others have sent
            for waiting in self._waiting:
                if waiting[0].row[0] != Ask.LEAVE:
                    waiting.popleft()
            return True
        self._serve_all(asked, [waiting.popleft() for waiting in self._waiting])
        return True

    def _all_left(self) -> bool:
        return all(waiting and waiting[0].row[0] == Ask.LEAVE for waiting in self._waiting)

    def _serve_one(self, ask: Ask, message: Message) -> None:
        state = self._begun(int(message.row[2]))
        if ask == Ask.STATE:
            signs, balance = state.saved(None, self._epoch)
            self._link.send(message.sender, row_of(Ask.STATE), pack({"signs": signs, "balance": balance}))
        else:
            saved = unpack(message.body)
            state.take_over(self._epoch, saved["signs"], saved["balance"])

    def _serve_all(self, asked: set[Ask], messages: list[Message]) -> None:
        if Ask.GREET in asked:
            self._greet(asked, messages)
            return
        rows = np.stack([message.row[1:] for message in messages])
        compare_headers(rows)
        header = Header.of(rows[0])
        state = self._begun(header.epoch)
        if asked == {Ask.PAIRS}:
            received, count = state.room_for(header.pairs), header.pairs
            for message, room in zip(messages, received, strict=True):
                room[...] = message.body[count:].reshape(room.shape)
            state.balance(received, np.stack([message.body[:count] for message in messages]).astype(bool), header)
            return
        body = pack_signs(state.signs, state.dropped)
        self._reset(header.epoch + 1)
        for message in messages:
            self._link.send(message.sender, row_of(Ask.END), body)

    def _greet(self, asked: set[Ask], messages: list[Message]) -> None:
        """Make what a new session needs."""
        greetings = [json.loads(message.body.tobytes()) for message in messages if message.row[0] == Ask.GREET]
        if asked != {Ask.GREET} or any(one != greetings[0] for one in greetings):
            raise ConsistencyError("the ranks that greet the server are not one job: every rank must get the same settings")
        answer = b""
        try:
            self._open(greetings[0])
        except HvdGrabError as error:
            answer = f"the server cannot balance for these ranks: {error}".encode()
        for message in messages:
            self._link.send(message.sender, row_of(Ask.GREET), np.frombuffer(answer, dtype=np.uint8))
        if self._state is not None and self._state.balancer is not None:
            self._state.balancer.warm_up()

    def _open(self, greeting: dict[str, Any]) -> None:
        if greeting["version"] != __version__:
            raise ConsistencyError(
                f"it has hvdgrab {__version__}, they have {greeting['version']}: install the same hvdgrab on every node"
            )
        config = GraBConfig.model_validate_json(greeting["config"])
        ranks, units = greeting["ranks"], greeting["units"]
        payloads = Format.of(config, greeting["dimension"], units)
        balancer = payloads.balancer(config, expected=ranks * (units // 2))
        self._state = PayloadState(ranks, units // 2, payloads, root=0, balancer=balancer, device=CPU)
        self._epoch = 0
        print(f"hvdgrab: the server balances {payloads.describe(balancer)}", file=sys.stderr, flush=True)

    def _begun(self, epoch: int) -> PayloadState:
        """The state, in ``epoch``; epochs before it may have passed without a message."""
        assert self._state is not None
        if epoch != self._epoch:
            self._reset(epoch)
        return self._state

    def _reset(self, epoch: int) -> None:
        assert self._state is not None
        self._state.reset(epoch)
        self._epoch = epoch


def take_leave(link: Link) -> None:
    """Tell the server that this process ends."""
    link.send(link.server, row_of(Ask.LEAVE), EMPTY)


def _answer(link: Link, ask: Ask) -> Body:
    """Wait for the server's answer, and skip those that an earlier session did not wait for."""
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
