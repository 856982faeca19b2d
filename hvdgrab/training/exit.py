"""What happens to a session when its process ends."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable

from hvdgrab.comm.world import World, end_job
from hvdgrab.coordinator.session import OrderingSession
from hvdgrab.errors import CommunicatorClosed, HvdGrabError
from hvdgrab.training.horovod import wait_for_everyone

EXIT_TIMEOUT = 30.0
"""Seconds that a process which ends well waits for the others, to write the last epoch's line."""
EARLY_EXIT_TIMEOUT = 5.0
"""The same in the middle of an epoch: if the others do not end there too, they wait for this rank's gradients."""


def close_at_exit(session: OrderingSession, world: World) -> Callable[[], None]:
    """Close the session when the process ends, and end the whole job if this rank ends by an exception.

    Without the latter, a rank that raised would wait in MPI's finalisation for ranks that wait for its gradients.  Handlers run
    last registered first, so this one runs before Horovod's own shutdown, whose errors on the other ranks would hide the cause.

    Returns:
        A function that closes the session now.
    """
    process, reference = os.getpid(), weakref.ref(session)

    def close() -> None:
        alive = reference()
        if alive is None or alive.closed:
            return
        if not alive.close(timeout=EXIT_TIMEOUT if alive.book.position == alive.book.n else EARLY_EXIT_TIMEOUT):
            _explain(world, alive.error)
        elif world.horovod and world.size > 1 and alive.connected:
            # The first rank that leaves ends Horovod everywhere, and MPI with it: nobody may still be in a call then.
            wait_for_everyone(EXIT_TIMEOUT)

    def at_exit() -> None:
        if os.getpid() != process:
            return
        if getattr(sys, "last_value", None) is not None:
            if (alive := reference()) is not None:
                alive.close(finish=False, timeout=0.0)
            if world.size > 1 and world.horovod:
                end_job(None)
            return
        alive = reference()
        try:
            close()
        except HvdGrabError as error:
            end_job(error)
        if alive is not None and world.size > 1 and _left_alone(alive):
            book = alive.book
            print(
                f"hvdgrab: rank {world.rank} has left after {book.position} of {book.n} units of epoch {book.epoch}; ranks that "
                "go on will hear from Horovod that it has been shut down",
                file=sys.stderr,
            )

    atexit.register(at_exit)

    def close_and_forget() -> None:
        atexit.unregister(at_exit)
        close()

    return close_and_forget


def _left_alone(session: OrderingSession) -> bool:
    """Whether this rank ended in the middle of an epoch, by ``sys.exit`` say, and the others did not."""
    return session.connected and not session.finished and session.book.position < session.book.n


def _explain(world: World, error: BaseException | None) -> None:
    """Say why the last epoch has no line; errors of the training itself are raised."""
    if error is not None and not isinstance(error, CommunicatorClosed):
        raise error
    reason = error or f"rank {world.rank}: the other ranks did not come to the end"
    print(f"hvdgrab: {reason}; the last epoch's line is missing", file=sys.stderr)
