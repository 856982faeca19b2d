"""Counting backward passes, to tell scripts that make another number of them than they say."""

from __future__ import annotations

import sys

from hvdgrab.coordinator.book import OrderBook
from hvdgrab.errors import UsageError


class PassCount:
    """The backward passes of an epoch.

    Args:
        book: where the rank stands.
        per_unit: passes that make a unit, as the script says.
    """

    def __init__(self, book: OrderBook, per_unit: int) -> None:
        self._book, self._per_unit, self._passes = book, per_unit, 0

    def begin(self) -> None:
        """Start an epoch."""
        self._passes = 0

    def add(self, passes: int) -> None:
        """Count passes, of a unit or left over."""
        self._passes += passes

    def check(self) -> None:
        """At the end of an epoch: did every batch that was drawn have its passes?  If not, it is said on standard error.

        Raises:
            UsageError: every batch had fewer passes than a unit has.
        """
        book, per_unit = self._book, self._per_unit
        seen, n = book.position, book.n
        if not book.exhausted or seen == n:
            return
        if per_unit > 1 and self._passes in range(n, n * per_unit, n):
            right = self._passes // n
            raise UsageError(
                f"rank {book.rank}: passes_per_unit is {per_unit}, but the {n} batches of epoch {book.epoch} had "
                f"{right} backward passes each: say passes_per_unit={right}"
            )
        print(
            f"hvdgrab: rank {book.rank}: {n - seen} of the {n} batches of epoch {book.epoch} had no backward pass; "
            "which ones is not known, so gradients may have been taken for those of other batches. Say optimizer.skip_unit() "
            "where the script leaves a batch out",
            file=sys.stderr,
        )
