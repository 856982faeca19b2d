"""The sampler: hands out each rank's units in the order that the last epoch's gradients ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler

from hvdgrab.comm.world import World, find_world
from hvdgrab.config import GraBConfig, Order
from hvdgrab.coordinator.book import OrderBook
from hvdgrab.coordinator.saved import SavedState
from hvdgrab.errors import UsageError
from hvdgrab.training.units import Units, form_units

if TYPE_CHECKING:
    from hvdgrab.coordinator.session import OrderingSession


class GraBSampler(Sampler[list[int]]):
    """A batch sampler over this rank's units; give it to a DataLoader as ``batch_sampler``.

    The examples are dealt once to W·n near-equal units, n on every rank (`hvdgrab.training.units`); every epoch sees each of them
    exactly once.  The rule (``order``) decides in which order; the orders made from gradients need a `GraBOptimizer` over this
    sampler.

    Nothing needs to be called between epochs; `set_epoch` is accepted and checked.  ``iter()`` alone has no effect: the next
    epoch begins with the first batch that is asked for after a unit has been consumed by a backward pass.

    Args:
        dataset: the whole dataset, the same on every rank; only its length is used.
        batch_size: examples in a unit, at most (see `hvdgrab.training.units.count_units`).
        seed: deals examples to units, and makes every random order; default 0, or the job's YAML.
        order: the rule, see `hvdgrab.config.ORDERS`; default ``cd-grab``, or the job's YAML.
        rank: this rank; by default Horovod's, or 0 if the script does not use Horovod.
        size: number of ranks W, likewise.
        config: all settings at once, instead of ``seed`` and ``order``.

    Raises:
        ConfigError: an argument contradicts the job's YAML, or another argument.
        UsageError: the dataset has no length, or fewer examples than there are ranks.
        WorldError: see `hvdgrab.comm.world.find_world`.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        seed: int | None = None,
        *,
        order: Order | None = None,
        rank: int | None = None,
        size: int | None = None,
        config: GraBConfig | None = None,
    ) -> None:
        if not hasattr(dataset, "__len__"):
            raise UsageError(
                f"GraBSampler needs a dataset with a length; {type(dataset).__name__} (an iterable dataset?) has none"
            )
        if not isinstance(batch_size, int) or isinstance(batch_size, bool):
            raise UsageError(f"batch_size must be a whole number, not {batch_size!r}")
        self.config = GraBConfig.resolve(config, seed=seed, order=order)
        self.world = _place(rank, size)
        self.batch_size = batch_size
        self._examples = len(dataset)
        self._units = self._deal(0)
        self._units_epoch = 0
        self.book = OrderBook(self.config, self._units.n, self.world.rank, self.world.size)
        self._session: OrderingSession | None = None
        self._loaded: SavedState | None = None
        self._retire: Callable[[], None] | None = None

    def __len__(self) -> int:
        """Units of an epoch on this rank (n)."""
        return self.book.n

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the dataset indices of one unit after another."""
        if self.book.is_over:
            (self._session or self.book).begin_next_epoch()
        for epoch, unit in self.book.units():
            yield self._members(epoch, unit)

    @property
    def epoch(self) -> int:
        """The epoch that is under way; see `next_epoch` for where a loop should start."""
        return self.book.epoch

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration will run; after `load_state_dict` the saved one."""
        return self.book.next_epoch

    @property
    def units(self) -> int:
        """Units of an epoch on this rank (n)."""
        return self.book.n

    def set_epoch(self, epoch: int) -> None:
        """Check that the script and the sampler count epochs alike; has no other effect.

        Raises:
            UsageError: the next iteration is another epoch's.
        """
        self.book.expect_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """What is needed to continue from here; bit for bit if every rank saves its own (see `GraBOptimizer.state_dict`)."""
        if self._session is not None:
            return self._session.saved_state().to_dict()
        return (self._loaded or SavedState.of(self.book, self.facts())).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; communicates nothing.  On every rank, or on rank 0 alone
        (`GraBOptimizer.load_state_dict`).

        Raises:
            StateError: the state is of another run: order, seed, dataset, model, number of ranks or units.
        """
        saved = SavedState.from_dict(state)
        if self._session is not None:
            self._session.restore(saved)
            return
        saved.check(self.book, self.facts())
        self._loaded = saved
        self.book.restore(saved.epoch, saved.position, saved.orders)

    def facts(self) -> dict[str, Any]:
        """What every rank must agree on about the data."""
        dealing = "anew every epoch" if self.config.order == "reshuffle" else self._units.digest()[:16]
        return {"examples": self._examples, "units": self.book.n, "dealing": dealing}

    @property
    def attended(self) -> bool:
        """Whether a `GraBOptimizer` that is not closed orders the epochs."""
        return self._session is not None and not self._session.closed

    def attend(self, session: OrderingSession, retire: Callable[[], None] | None = None) -> None:
        """Let ``session`` order the epochs, from the state that was loaded before.  Called by `GraBOptimizer`.

        Args:
            session: what takes over from the closed one, if there was one.
            retire: called when yet another session takes over.

        Raises:
            StateError: that state is of another model.
        """
        loaded = self._loaded if self._session is None else self._session.saved_state().carried_over(session.facts)
        if loaded is not None:
            session.restore(loaded)
        if self._retire is not None:
            self._retire()
        self._session, self._loaded, self._retire = session, None, retire

    def _members(self, epoch: int, unit: int) -> list[int]:
        if self.config.order == "reshuffle" and epoch != self._units_epoch:
            self._units, self._units_epoch = self._deal(epoch), epoch
        members: list[int] = self._units.members(self.world.rank, unit).tolist()
        return members

    def _deal(self, epoch: int) -> Units:
        return form_units(
            self._examples, self.world.size, self.batch_size, self.config.seed, epoch=epoch, shuffle=self.config.order != "fixed"
        )


def _place(rank: int | None, size: int | None) -> World:
    """The world, or the part of it that the script gives by hand."""
    if (rank is None) != (size is None):
        raise UsageError("rank and size go together: pass both, or neither to take Horovod's")
    if rank is None or size is None:
        return find_world()
    if not 0 <= rank < size:
        raise UsageError(f"rank {rank} is not one of {size} ranks (0 … {size - 1})")
    return World(rank, size)
