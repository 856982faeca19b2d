"""A process that does not train and balances the pairs of those that do; see `hvdgrab.server` for how it is started."""

from __future__ import annotations

import json
import sys
from collections import deque
from typing import Any

import numpy as np

from hvdgrab import __version__
from hvdgrab.comm.link import Link, Message
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator.messages import Header, compare_headers
from hvdgrab.coordinator.parts import serving_state
from hvdgrab.coordinator.payloads import PayloadState
from hvdgrab.coordinator.served import Ask, pack, row_of, unpack
from hvdgrab.coordinator.signs import pack_signs
from hvdgrab.errors import ConsistencyError, HvdGrabError


class Service:
    """Answers the ranks until all of them have left.

    Each rank's messages are taken in order.  A message of pairs, and the end of an epoch, waits until that of every rank is
    there; whoever asks for the state is answered when what it has sent before is balanced.

    Args:
        link: the server's end.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: list[deque[Message]] = [deque() for _ in range(link.server)]
        self._state: PayloadState | None = None
        self._epoch = 0

    def run(self) -> None:
        """Serve.

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
        """Do what the oldest messages of all ranks allow; whether that was anything."""
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
        """A session begins, the first one or another: make what it needs."""
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
        self._state, said = serving_state(config, greeting["ranks"], greeting["units"], greeting["dimension"])
        self._epoch = 0
        print(f"hvdgrab: the server balances {said}", file=sys.stderr, flush=True)

    def _begun(self, epoch: int) -> PayloadState:
        """The state, in ``epoch``: others may have passed without a message."""
        assert self._state is not None
        if epoch != self._epoch:
            self._reset(epoch)
        return self._state

    def _reset(self, epoch: int) -> None:
        assert self._state is not None
        self._state.reset(epoch)
        self._epoch = epoch
