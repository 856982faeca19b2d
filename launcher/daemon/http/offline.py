"""The record while no daemon answers: for commands that only read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.daemon.dirs import Dirs
from launcher.errors import UsageError
from launcher.jobdir.words import JobView

if TYPE_CHECKING:
    from launcher.daemon.record.lease import Holder


@dataclass(frozen=True)
class OfflineRecord:
    """All jobs as the record holds them; their states are those that the last daemon noted."""

    views: tuple[JobView, ...]
    """Oldest first."""
    owner: str | None
    """The host whose daemon owns the record; None where none does."""
    holder: Holder | None = None
    """The daemon that owns it, or owned it last; None before the first."""

    def jobs(
        self, *, state: Sequence[str] = (), name: str | None = None, group: str | None = None, limit: int | None = None
    ) -> list[JobView]:
        """As `launcher.daemon.http.client.Client.jobs`."""
        found = [
            view
            for view in self.views
            if (not state or view.state in state) and name in (None, view.name) and group in (None, view.group)
        ]
        return found if limit is None else found[max(0, len(found) - limit) :]

    def job(self, job_id: str) -> JobView:
        """One job.  Raises UsageError where there is none of this id."""
        for view in self.views:
            if view.id == job_id:
                return view
        raise UsageError(f"no job {job_id!r} in the record")


def read_record_offline(dirs: Dirs | None = None) -> OfflineRecord:
    """Read the record without a daemon.

    Raises:
        RecordError: where it cannot be read; the text names the cause.
    """
    from launcher.daemon.record.jobs import Store

    try:
        store = Store.open_read_only((dirs or Dirs.of_user()).record)
    except FileNotFoundError:
        return OfflineRecord((), None)
    try:
        holder = store.holder
        host = holder.host if holder is not None else "unknown"
        owner = None if holder is None or holder.released else holder.host
        return OfflineRecord(tuple(job.view(host) for job in store.find()), owner, holder)
    finally:
        store.close(release=False)
