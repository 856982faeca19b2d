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

    def at_exit() -> None:
        if os.getpid() == process:
            _end_process(reference(), world)

    def close_now() -> None:
        atexit.unregister(at_exit)
        _close(reference(), world)

    atexit.register(at_exit)
    return close_now


def _close(session: OrderingSession | None, world: World) -> None:
    """Close a session, and wait for the other ranks if all is done."""
    if session is None or session.closed:
        return
    if not session.close(timeout=EXIT_TIMEOUT if session.book.position == session.book.n else EARLY_EXIT_TIMEOUT):
        _explain(world, session.error)
    elif world.horovod and world.size > 1 and session.connected:
        # The first rank that leaves ends Horovod everywhere, and MPI with it: nobody may still be in a call then.
        wait_for_everyone(EXIT_TIMEOUT)


def _end_process(session: OrderingSession | None, world: World) -> None:
    """Close a session at the end of its process."""
    if getattr(sys, "last_value", None) is not None:
        if session is not None:
            session.close(finish=False, timeout=0.0)
        if world.size > 1 and world.horovod:
            end_job(None)
        return
    try:
        _close(session, world)
    except HvdGrabError as error:
        end_job(error)
    if session is not None and world.size > 1 and _left_alone(session):
        book = session.book
        print(
            f"hvdgrab: rank {world.rank} has left after {book.position} of {book.n} units of epoch {book.epoch}; ranks that "
            "go on will hear from Horovod that it has been shut down",
            file=sys.stderr,
        )


def _left_alone(session: OrderingSession) -> bool:
    """Whether this rank ended in the middle of an epoch, by ``sys.exit`` say, and the others did not."""
    return session.connected and not session.finished and session.book.position < session.book.n


def _explain(world: World, error: BaseException | None) -> None:
    """Explain on standard error why the last epoch has no line; errors of the training itself are raised."""
    if error is not None and not isinstance(error, CommunicatorClosed):
        raise error
    reason = error or f"rank {world.rank}: the other ranks did not come to the end"
    print(f"hvdgrab: {reason}; the last epoch's line is missing", file=sys.stderr)
