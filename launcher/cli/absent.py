"""Why no daemon answers here, in one sentence that says what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.daemon.http.client import OfflineRecord, read_record_offline
from launcher.errors import LauncherError

if TYPE_CHECKING:
    from launcher.daemon.lease import Holder  # brings in SQLite, which commands do without while a daemon answers

START = "`hvdgrab-launch daemon start` starts one, as does the next job"


def sentence(record: OfflineRecord, me: Holder | None = None) -> str:
    """The sentence.

    Args:
        record: as it was read without a daemon.
        me: who asks; by default this process.
    """
    from launcher.daemon.lease import Holder

    holder, own = record.holder, me or Holder()
    if holder is None:
        return f"no daemon has run yet; {START}"
    if holder.released:
        return f"no daemon runs: the last one, on {holder.host}, was stopped, and jobs that ran went on; {START}"
    if holder.host != own.host:
        return (
            f"the record belongs to the daemon on {holder.host}: give commands there; if that host is gone, "
            f"`hvdgrab-launch daemon start` takes over here once the lease of {holder.seconds:.0f} s has run out"
        )
    if holder.certainly_gone(own, shared=False):
        return (
            f"no daemon runs: the last one, process {holder.pid}, ended without a word (it was killed, or the host was started "
            "again), and jobs that ran went on; `hvdgrab-launch daemon start` starts the next one, which finds them"
        )
    if holder.processes != own.processes:
        return (
            f"the daemon, process {holder.pid}, runs in another container on {holder.host}: give commands there, or stop it there"
        )
    return (
        f"the daemon, process {holder.pid}, runs, but cannot be reached: it is just starting, or it listens in another runtime "
        "directory; then set HVDGRAB_RUNTIME or XDG_RUNTIME_DIR as it was when that one was started, or end it with "
        f"`kill {holder.pid}`; jobs go on"
    )


def lives(record: OfflineRecord, me: Holder | None = None) -> bool:
    """Whether a daemon of this host holds the record, although it does not answer here."""
    from launcher.daemon.lease import Holder

    holder, own = record.holder, me or Holder()
    if holder is None or holder.released or holder.host != own.host:
        return False
    return not holder.certainly_gone(own, shared=False)


def read() -> tuple[str, OfflineRecord]:
    """The sentence, and the record; where that cannot be read, the sentence says why."""
    try:
        record = read_record_offline()
    except LauncherError as error:
        return str(error), OfflineRecord((), None)
    return sentence(record), record
