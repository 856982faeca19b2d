"""An ordering session: one rank's part in ordering a run, from units to the next epoch's orders.

The training thread calls `unit` after every unit's last backward pass.  Everything that waits for other ranks runs in the
communication thread; the training thread waits only for the first unit's handshake, for the end of an epoch before it starts
the next, and where it is a whole message ahead.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab import __version__
from hvdgrab.balance import Rule, build_rule
from hvdgrab.balance.meters import BoundExact, BoundSketch
from hvdgrab.comm.communicator import Communicator
from hvdgrab.comm.thread import CommunicationThread
from hvdgrab.config import SINGLE_RANK_ORDERS, GraBConfig
from hvdgrab.coordinator.book import OrderBook, Orders, Place
from hvdgrab.coordinator.departures import Departures
from hvdgrab.coordinator.ending import EndOfEpoch, Outcome, share_rows
from hvdgrab.coordinator.handshake import shake_hands
from hvdgrab.coordinator.journal import Journal
from hvdgrab.coordinator.messages import Header, Kind, PairMessage
from hvdgrab.coordinator.pairing import CPU, PairBuffer
from hvdgrab.coordinator.parts import BOUND_WIDTH, make_parts
from hvdgrab.coordinator.saved import SavedState, fetch_state
from hvdgrab.coordinator.staging import LateMeter
from hvdgrab.coordinator.unit import UnitGradient
from hvdgrab.errors import CommunicatorClosed, UsageError

Result = TypeVar("Result")


class OrderingSession:
    """Orders the epochs of one rank, together with the sessions of the others.

    Args:
        config: the settings.
        book: the sampler's; its later epochs are decided here from now on.
        dimension: d, values of a gradient.
        facts: what must be equal on all ranks before the first unit (see `handshake`), beside what the book says itself.
        connect: makes the communicator, in the communication thread.
        journal: takes the epoch's measurements.
        unheard: called in the communication thread with its error if the training loop does not pick it up; ends the process.
        device: of the vectors that `unit` is given.
    """

    def __init__(
        self,
        config: GraBConfig,
        book: OrderBook,
        dimension: int,
        facts: dict[str, Any],
        connect: Callable[[], Communicator],
        journal: Journal,
        unheard: Callable[[BaseException], None],
        device: torch.device = CPU,
    ) -> None:
        self.config, self.book, self.journal = config, book, journal
        self._dimension, self._device = dimension, device
        self._parts = make_parts(config, book, dimension)
        self._facts = {**facts, "ordering": self._parts.ordering}
        self._coordinator = self._parts.coordinator
        self.views = self._parts.views
        """What of a unit's gradient `unit` must be given."""
        self._connect, self._unheard = connect, unheard
        self.forget_passes: Callable[[], int] = lambda: 0
        """Drops the backward passes of a unit that was not completed and tells how many; set by the capture's owner."""
        self._thread: CommunicationThread | None = None
        self._saved: SavedState | None = None
        self._outcome: Future[Outcome] | None = None
        self._departures = Departures(book.rank)
        self._messages = 0
        self._passes = 0
        self._pairs: PairBuffer | None = None
        self._rule: Rule | None = None
        self._meter: LateMeter | None = None
        self._whole = True
        self._closed = False
        book.attend(self._next_orders)

    def unit(self, gradient: UnitGradient | None, passes: int = 1) -> None:
        """Take the gradient of the unit that has just had its last backward pass; None if it had none of its own.

        Args:
            gradient: the views of it that `views` asks for; read only, not kept.
            passes: backward passes that made the unit.

        Raises:
            UsageError: no unit was handed out for it.
            HvdGrabError: whatever happened in the communication thread.
        """
        thread = self._connected()
        thread.check()
        place = self.book.consume()
        self._departures.reach(self.book.position)
        self._passes += passes
        seen = None if place.stand_in else gradient
        self._whole = self._whole and seen is not None
        if self._meter is not None and seen is not None and seen.measured is not None:
            self._meter.add(place, seen.measured)
        self._balance(place, None if seen is None else seen.vector)
        self.journal.unit_done()
        if self.book.position == self.book.n:
            self._outcome = self._end_epoch()

    def close(self, finish: bool = True, timeout: float = 30.0) -> bool:
        """End the session: finish the epoch that is under way if ``finish``, and what is queued.  Idempotent; never hangs.

        Returns:
            Whether everything was done; False if other ranks did not come within ``timeout`` seconds.
        """
        if self._closed:
            return True
        self._closed = True
        if self._thread is None:
            return True
        if finish and self.book.consumed and self.error is None:
            self._outcome = outcome = self._outcome or self._end_epoch()
            measured = self.journal.take()
            self._thread.submit(lambda communicator: self.journal.report(outcome.result().facts, measured, communicator))
        return self._thread.close(timeout)

    @property
    def connected(self) -> bool:
        """Whether this rank has ever talked to the others."""
        return self._thread is not None

    @property
    def error(self) -> BaseException | None:
        """What ended the communication, if anything did."""
        return None if self._thread is None else self._thread.error

    @property
    def finished(self) -> bool:
        """Whether the epoch that was under way when the session was closed could be ended, on all ranks."""
        return not self.book.consumed or (self._outcome is not None and self._outcome.done() and not self._outcome.exception())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def facts(self) -> dict[str, Any]:
        """What must be equal on all ranks, and in the run that made a state that is loaded here."""
        return self._facts

    def saved_state(self) -> SavedState:
        """What a run needs to continue from here; communicates nothing that the other ranks do not do anyway.

        On the designated rank it waits until the pairs that it has sent are balanced.
        """
        if self._saved is not None:
            return self._saved
        if self._outcome is not None:  # between two epochs: the next one's beginning is what is saved
            orders = self._wait(self._outcome, "the end of the epoch").orders
            return SavedState.of(
                self.book,
                self._facts,
                epoch=self.book.epoch + 1,
                position=0,
                orders=orders,
                balance=self._saved_balance() if self.config.balance.carry_over else None,
                rule=self._saved_rule(),
            )
        if self._pairs is not None:
            self._pairs.drain()
        return SavedState.of(
            self.book,
            self._facts,
            signs=self._coordinator.signs.copy(),
            balance=self._saved_balance(),
            unsent=None if self._pairs is None else self._pairs.unsent(),
            rule=self._saved_rule(),
        )

    def restore(self, saved: SavedState) -> None:
        """Continue from a state that this rank has loaded; before the first unit, or between two."""
        saved.check(self.book, self._facts)
        saved = saved.reordered(self._facts)
        self._saved = saved
        self.book.restore(saved.epoch, saved.position, saved.orders)
        if self._thread is not None:
            self._leave_epoch()
            self._begin_epoch(saved.epoch, saved.position, saved.orders)
            self._take_over(saved)
            self._saved = None

    def _leave_epoch(self) -> None:
        """Come to rest before a state is put in place: nothing is under way, and an epoch that has ended gets its line."""
        assert self._thread is not None
        if self._pairs is not None:
            self._pairs.drain()
        measured = self.journal.take()
        if self._outcome is not None:
            facts = self._wait(self._outcome, f"the end of epoch {self.book.epoch}").facts
            self._thread.submit(functools.partial(self.journal.report, facts, measured))
            self._outcome = None

    def _saved_balance(self) -> dict[str, Any] | None:
        balancer = self._coordinator.balancer
        return None if balancer is None else balancer.state_dict()

    def _saved_rule(self) -> dict[str, Any] | None:
        return None if self._rule is None else self._rule.state_dict()

    def _balance(self, place: Place, vector: torch.Tensor | None) -> None:
        if self._rule is not None:
            self._rule.skip() if vector is None else self._rule.add(vector)
        elif self._pairs is not None and not (place.position == self.book.n - 1 and place.position % 2 == 0):
            self._pairs.add(vector)

    def _next_orders(self) -> Orders:
        """The orders of the next epoch; ends the current one first if it was left early."""
        if self._closed and self._outcome is not None:  # a last look at the data: nothing is ordered any more
            outcome, self._outcome = self._outcome, None
            return self._wait(outcome, f"the end of epoch {self.book.epoch}").orders
        self._passes += self.forget_passes()
        self._check_passes()
        outcome = self._outcome or self._end_epoch()
        result = self._wait(outcome, f"the end of epoch {self.book.epoch}")
        assert self._thread is not None
        self._thread.submit(functools.partial(self.journal.report, result.facts, self.journal.take()))
        self._outcome = None
        self._begin_epoch(self.book.epoch + 1, 0, result.orders)
        return result.orders

    def _check_passes(self) -> None:
        per_unit, seen, n = self.config.passes_per_unit, self.book.position, self.book.n
        if self.book.exhausted and seen < n and per_unit > 1 and self._passes in range(n, n * per_unit, n):
            right = self._passes // n
            raise UsageError(
                f"rank {self.book.rank}: passes_per_unit is {per_unit}, but the {n} batches of epoch {self.book.epoch} had "
                f"{right} backward passes each: say passes_per_unit={right}"
            )
        if self.book.exhausted and seen < n:
            print(
                f"hvdgrab: rank {self.book.rank}: {n - seen} of the {n} batches of epoch {self.book.epoch} had no backward pass; "
                "which ones is not known, so gradients may have been taken for those of other batches. Say optimizer.skip_unit() "
                "where the script leaves a batch out",
                file=sys.stderr,
            )

    def _end_epoch(self) -> Future[Outcome]:
        """Queue everything that the end of an epoch needs, after its last messages."""
        assert self._thread is not None
        book, departures = self.book, self._departures
        left = departures.end()
        early = left is not None and left.unit < book.n
        if left is not None and early:  # before any message, which may have to wait for the others
            self._thread.submit(lambda communicator: communicator.notify(left.row()))
        if self._pairs is not None:
            self._pairs.flush()
        end = EndOfEpoch(
            config=self.config,
            header=Header(Kind.END, book.epoch, self._messages, book.n // 2, 0, book.position),
            orders=book.orders,
            seeded_orders=book.seeded_orders,
            dimension=self._dimension,
            coordinator=self._coordinator,
            meter=None if self._meter is None else self._meter.finish(),
            rule=self._rule,
            whole=self._whole,
        )

        def run(communicator: Communicator) -> Outcome:
            outcome = end.run(communicator)
            if early:  # all have left at the same place: only so that notices do not pile up
                with contextlib.suppress(CommunicatorClosed):
                    departures.collect(communicator)
            return outcome

        return self._thread.submit(run)

    def _begin_epoch(self, epoch: int, position: int, orders: Orders) -> None:
        book, config = self.book, self.config
        self._messages = self._passes = 0
        self._whole = position == 0
        if self._pairs is not None:
            self._pairs.begin(position // 2)
        self._meter = None
        if config.bound != "off":
            common: dict[str, Any] = {"order": orders[book.rank], "epoch": epoch, "seed": config.seed, "rank": book.rank}
            exact = config.bound == "exact"
            meter = (
                BoundExact(book.n, self._dimension, **common)
                if exact
                else BoundSketch(book.n, fold=None, width=BOUND_WIDTH, **common)
            )
            size, lag = (self._dimension, 1) if exact else (BOUND_WIDTH, 16)
            self._meter = LateMeter(meter, size, self._device, lag)
        self.journal.begin_epoch()
        self._departures.begin(epoch, position)

    def _connected(self) -> CommunicationThread:
        """The communication thread; at the first unit it is started and the ranks shake hands."""
        if self._thread is None:
            self._thread = CommunicationThread(self._connect, self._unheard, self._departures.weak_look())
            self._open_buffers()
            saved = self._saved
            place = None if saved is None else [saved.epoch, saved.position]
            greeting = self._thread.submit(lambda communicator: shake_hands(communicator, self._all_facts(), place))
            balancer = self._coordinator.balancer
            if balancer is not None:
                self._thread.submit(lambda _: balancer.warm_up())  # while the first batches are trained on
            verdict = self._wait(greeting, "the first unit of every rank")
            if verdict.state_from is not None:
                saved = self._receive_state(verdict.state_from)
            self._begin_epoch(self.book.epoch, self.book.position, self.book.orders)
            if saved is not None:
                self._take_over(saved)
            self._saved = None
            if balancer is not None and self.book.rank == self.config.designated_rank:
                print(f"hvdgrab: rank {self.book.rank} balances {self._parts.said}; {balancer.choice}", file=sys.stderr)
        return self._thread

    def _open_buffers(self) -> None:
        if self.config.order in SINGLE_RANK_ORDERS:
            self._rule = build_rule(
                self.config.order,
                n=self.book.n,
                d=self._parts.width,
                seed=self.config.seed,
                config=self.config.balance,
                order=self.book.order,
            )
        elif self.config.uses_gradients:
            self._pairs = PairBuffer(
                self._parts.width,
                self._parts.pairs_per_message,
                self._send,
                lambda sent: self._wait(sent, "earlier pairs"),
                self._device,
            )

    def _receive_state(self, root: int) -> SavedState:
        """Get the state that ``root`` alone has loaded, and go on from it; collective."""
        assert self._thread is not None
        sent = self._thread.submit(functools.partial(fetch_state, saved=self._saved, root=root))
        saved = self._wait(sent, f"the state that rank {root} has loaded")
        if self._saved is None:
            self._adopt(saved)
        # Units on their way have changed this rank's own order: everyone must know it to make the next one.
        rows = self._thread.submit(functools.partial(share_rows, row=self.book.order))
        self.book.orders = self._wait(rows, "the orders of all ranks")
        return saved.without_own_pairs()

    def _adopt(self, saved: SavedState) -> None:
        saved.check(self.book, self._facts)
        repeated = self.book.adopt(saved.epoch, saved.position, saved.orders)
        if repeated:
            print(
                f"hvdgrab: rank {self.book.rank}: rank 0's saved state arrived after {repeated} batches that epoch "
                f"{saved.epoch} has seen already had been drawn: it sees them twice, and as many others not at all. To avoid "
                "it, call load_state_dict on every rank",
                file=sys.stderr,
            )

    def _take_over(self, saved: SavedState) -> None:
        """Put the inner state of a saved epoch in place; the book is there already."""
        own = saved.rank == self.book.rank
        self._whole = saved.position == 0
        if self._pairs is not None:
            self._pairs.resume(saved.position, saved.unsent if own else None)
            # With id-grab every rank has a running sum of its own; with cd-grab only the designated one has any.
            mine = own or self.config.order == "cd-grab"
            sums = mine and (saved.position > 0 or self.config.balance.carry_over)  # an epoch that has not begun has none
            self._coordinator.restore(saved.epoch, saved.signs, saved.balance if sums else None)
        if self._rule is not None and saved.rule is not None:
            self._rule.load_state_dict(saved.rule)

    def _all_facts(self) -> dict[str, Any]:
        sketch = None if self.views.projection is None else self.views.projection.digest()
        return {"version": __version__, "settings": self.config.model_dump_json(), "sketch": sketch, **self._facts}

    def _send(
        self, pair: int, differences: NDArray[np.float32], seen: NDArray[np.int8], arrived: Callable[[], object]
    ) -> Future[None]:
        assert self._thread is not None
        book = self.book
        header = Header(Kind.PAIRS, book.epoch, self._messages, pair, len(differences), book.position)
        self._messages += 1
        message = PairMessage(header, differences, seen)

        def exchange(communicator: Communicator) -> None:
            arrived()
            self._coordinator.exchange(communicator, message)

        return self._thread.submit(exchange)

    def _wait(self, future: Future[Result], what: str) -> Result:
        assert self._thread is not None
        place = f"rank {self.book.rank}, epoch {self.book.epoch}, after {self.book.position} of {self.book.n} units"
        return self._thread.wait(future, f"{place}: waits for {what}", self.config.stall_warning, self.config.stall_timeout)
