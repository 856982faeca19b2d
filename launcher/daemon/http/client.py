"""The daemon's client: what the command line and scripts use.

The standard library's HTTP over the daemon's Unix socket; importing it is cheap.  While no daemon answers, commands that only
read use `read_record_offline`.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from launcher.daemon.dirs import Dirs
from launcher.daemon.http.messages import PROBLEM_HEADER, DaemonStatus, JobView, Retry, Submission
from launcher.errors import LauncherError, UnreachableError, UsageError
from launcher.jobdir.paths import check_private

if TYPE_CHECKING:
    from launcher.daemon.lease import Holder  # brings in SQLite, which commands do without while a daemon answers

ANSWER_SECONDS = 30.0
"""Time for an answer; a daemon that takes longer counts as not reachable."""
LONGEST_POLL = 30.0
"""Seconds of one request of `Client.wait`."""
PATIENCE = 20.0
"""Seconds for which a request is repeated if the daemon goes away during it."""


class NotRunningError(UnreachableError):
    """Nobody listens."""


class Client:
    """This user's daemon on this host.

    Attributes:
        problem: what keeps the daemon from its work, as its last answer to `jobs` or `job` said; None if nothing does.
    """

    def __init__(self, dirs: Dirs) -> None:
        self._dirs = dirs
        self._may_start = False
        self._first: _Connection | None = None
        self.problem: str | None = None

    @classmethod
    def connect(cls, start: bool, dirs: Dirs | None = None) -> Client:
        """A client whose daemon answers.

        Args:
            start: whether to start a daemon if none runs.
            dirs: where the daemon keeps things; by default as the environment says.

        Raises:
            UnreachableError: if none answers, or none could be started; the text says why.
        """
        client = cls(dirs or Dirs.of_user())
        client._may_start = start
        try:
            client._first = client._open()  # the first request uses it
        except _ConnectionLost:
            if not start:
                raise NotRunningError("no daemon runs on this host; `hvdgrab-launch daemon start` starts one") from None
            client._start()
        return client

    def submit(self, submission: Submission) -> JobView:
        """Hand a job over; returns when the record holds it durably.  Repeated for the same id, it changes nothing.

        Raises:
            UsageError: if the daemon refuses it; the text says why.
            UnreachableError: if the daemon cannot take it now.
        """
        return JobView.from_json(self._insist("POST", "/v1/jobs", submission.to_json()))

    def jobs(
        self,
        *,
        state: Sequence[str] = (),
        name: str | None = None,
        group: str | None = None,
        beginning: str | None = None,
        limit: int | None = None,
    ) -> list[JobView]:
        """Jobs, oldest first.

        Args:
            state: in which they are; any by default.
            name: which all of them have.
            group: which all of them belong to.
            beginning: of their id or group; as an id begins with the job's name, this finds what a user may mean by a word.
            limit: how many of the newest are returned at most.
        """
        given = {"name": name, "group": group, "beginning": beginning, "limit": limit}
        wanted = [("state", entry) for entry in state]
        wanted += [(key, str(value)) for key, value in given.items() if value is not None]
        return [JobView.from_json(entry) for entry in self._ask("GET", f"/v1/jobs?{urlencode(wanted)}")]

    def job(self, job_id: str) -> JobView:
        """One job.  Raises UsageError if there is none of this id."""
        return JobView.from_json(self._ask("GET", _path(job_id)))

    def cancel(self, job_id: str) -> JobView:
        """Ask for a job's end; harmless if repeated or late."""
        return JobView.from_json(self._insist("POST", _path(job_id, "cancel")))

    def retry(self, job_id: str, environment: Mapping[str, str]) -> JobView:
        """Queue a failed or cancelled job again, in its own directory, with its restart budgets whole again.

        Args:
            job_id: the job.
            environment: the submitter's environment; that of the first submission is not kept.
        """
        return JobView.from_json(self._ask("POST", _path(job_id, "retry"), Retry(environment).to_json()))

    def events(self, job_id: str, after: int = 0) -> list[dict[str, Any]]:
        """What happened to a job, as in its ``events.jsonl``, without the first ``after`` events."""
        events: list[dict[str, Any]] = self._ask("GET", f"{_path(job_id, 'events')}?after={after}")
        return events

    def wait(self, job_id: str, timeout: float | None = None) -> JobView:
        """The job as it is when its state is final, or ``timeout`` seconds have passed; None waits for ever."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = LONGEST_POLL if deadline is None else min(LONGEST_POLL, max(0.0, deadline - time.monotonic()))
            view = JobView.from_json(
                self._ask("GET", f"{_path(job_id, 'wait')}?timeout={left:.3f}", seconds=ANSWER_SECONDS + left)
            )
            if view.final or (deadline is not None and time.monotonic() >= deadline):
                return view

    def status(self) -> DaemonStatus:
        """The daemon about itself."""
        return DaemonStatus.from_json(self._ask("GET", "/v1/daemon"))

    def stop(self) -> None:
        """End the daemon; jobs go on running, and the next daemon finds them."""
        self._ask("POST", "/v1/daemon/stop")

    def _answers(self) -> bool:
        try:
            self._open().close()
        except _ConnectionLost:
            return False
        return True

    def _start(self) -> None:
        from launcher.daemon.spawn import start

        try:
            start(self._dirs)
        except UnreachableError:
            raise
        except LauncherError as error:
            raise UnreachableError(str(error)) from error

    def _open(self) -> _Connection:
        try:
            if self._dirs.runtime.exists():
                check_private(self._dirs.runtime)
            connection = _Connection(str(self._dirs.socket), ANSWER_SECONDS)
            connection.connect()
        except LauncherError as error:
            raise UnreachableError(str(error)) from error
        except OSError as error:
            raise _ConnectionLost(f"no daemon answers at {self._dirs.socket}: {error.strerror}") from error
        return connection

    def _insist(self, method: str, path: str, body: Any = None) -> Any:
        """A request that may be repeated: if the daemon goes away during it, the next daemon gets it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self._ask(method, path, body)
            except _ConnectionLost:
                if time.monotonic() > deadline or not self._may_start:
                    raise
            time.sleep(0.1)
            if not self._answers():
                self._start()

    def _ask(self, method: str, path: str, body: Any = None, seconds: float = ANSWER_SECONDS) -> Any:
        """One request on a connection of its own: a daemon that was replaced meanwhile leaves no broken one behind."""
        content = None if body is None else json.dumps(body).encode("ascii")
        headers = {"Connection": "close", **({"Content-Type": "application/json"} if content else {})}
        connection, self._first = self._first or self._open(), None
        try:
            connection.sock.settimeout(seconds)
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            problem = answer.getheader(PROBLEM_HEADER)
            self.problem = None if problem is None else str(json.loads(problem))
            return _result(answer.status, answer.read())
        except TimeoutError as error:
            raise UnreachableError(
                f"the daemon has not answered for {seconds:.0f} s; its log: {self._dirs.log}{_way_out(self._dirs)}"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise _ConnectionLost(f"the daemon went away before it answered; its log: {self._dirs.log}") from error
        finally:
            connection.close()


def _way_out(dirs: Dirs) -> str:
    """What to do about a daemon that hangs; '' where its process is not known."""
    owner = dirs.lock_owner()
    if owner is None:
        return ""
    return f"; if it stays so, `kill -9 {owner[0]}` ends it, jobs go on, and the next command starts another one"


class _ConnectionLost(UnreachableError):
    """Nobody listens, or who listened has gone; the request may be made again."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.close()
            raise


def _path(job_id: str, part: str | None = None) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}" + (f"/{part}" if part else "")


def _result(status: int, text: bytes) -> Any:
    try:
        data = json.loads(text) if text else None
    except ValueError as error:
        raise UnreachableError("what answers at the daemon's socket does not speak its language") from error
    if status < 400:
        return data
    detail = data.get("detail") if isinstance(data, dict) else None
    message = detail if isinstance(detail, str) else f"the daemon answered {status}: {detail}"
    if status >= 500:
        raise UnreachableError(message)
    raise UsageError(message)


@dataclass(frozen=True)
class OfflineRecord:
    """All jobs as the record holds them; their states are those that the last daemon noted."""

    views: tuple[JobView, ...]
    """Oldest first."""
    owner: str | None
    """The host whose daemon owns the record; None if none does."""
    holder: Holder | None = None
    """The daemon that owns it, or owned it last; None before the first."""


def read_record_offline(dirs: Dirs | None = None) -> OfflineRecord:
    """Read the record without a daemon.

    Raises:
        RecordError: if it cannot be read; the text names the cause.
    """
    from launcher.daemon.record import Store

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
