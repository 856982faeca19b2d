"""Several hosts on this machine, for tests; see `hvdgrab.bench.hosts` for what a `Net` can do.

``with hosts(2, rate="100mbit") as net: net.mpirun(2, ["-m", "tests.comm.mpi_program"])``
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from hvdgrab.bench import hosts as kit
from hvdgrab.bench.hosts import Net
from tests.real import need


def need_hosts() -> None:
    """Fail in CI, skip elsewhere, where hosts cannot be made."""
    lacking = kit.missing()
    need(f"hosts in network namespaces need {lacking}, which", present=not lacking)


@contextlib.contextmanager
def hosts(which: int | Sequence[str], rate: str | None = None, shm_bytes: int = 2**30) -> Iterator[Net]:
    """`hvdgrab.bench.hosts.hosts`, or the end of the test where they cannot be made."""
    need_hosts()
    with kit.hosts(which, rate, shm_bytes) as net:
        yield net
