"""The communicator of a job with one rank."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Buffer


class SerialCommunicator:
    """A group of one: every collective is a copy."""

    rank = 0
    size = 1
    waiting_for: ClassVar[list[int]] = []

    def gather(self, send: Buffer, receive: Buffer | None, root: int) -> None:  # noqa: ARG002 - one rank is always the root
        """Copy ``send`` to ``receive[0]``."""
        if receive is not None:
            receive[0] = send

    def allgather(self, send: Buffer, receive: Buffer) -> None:
        """Copy ``send`` to ``receive[0]``."""
        receive[0] = send

    def alltoall(self, send: Buffer, receive: Buffer) -> None:
        """Copy the only block."""
        receive[0] = send[0]

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """Nothing to do."""

    def reduce_sum(self, send: Buffer, receive: Buffer | None, root: int) -> None:  # noqa: ARG002
        """Copy ``send`` to ``receive``."""
        if receive is not None:
            receive[...] = send

    def notify(self, notice: NDArray[np.int64]) -> None:
        """There is nobody to tell."""

    def notices(self) -> list[tuple[int, NDArray[np.int64]]]:
        """There is nobody who could send one."""
        return []

    def cancel(self) -> None:
        """Nothing ever waits."""

    def close(self) -> None:
        """Nothing is held."""
