from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from launcher.daemon.http.client import read_record_offline
from launcher.daemon.lease import Holder, LeaseHeldError
from launcher.daemon.record import COLUMNS, Job, RecordError, Store, lease, open_record
from launcher.host.files import is_network, kind_of

MOUNTS = [
    "21 1 8:1 / / rw - ext4 /dev/sda1 rw",
    "22 21 0:30 / /home rw - nfs4 server:/home rw",
    "23 22 0:31 / /home/local\\040disk rw - xfs /dev/sdb rw",
    "24 21 0:32 / /mnt/ssh rw - fuse.sshfs me@there:/ rw",
    "25 21 0:33 / /mnt/fuse rw - fuse.something x rw",
    "26 21 0:34 / /scratch rw - lustre mds:/ rw",
    "27 26 0:35 / /scratch rw - tmpfs tmpfs rw",
]


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/var/lib", "ext4", False),
        ("/home", "nfs4", True),
        ("/home/user/x", "nfs4", True),
        ("/home/local disk/x", "xfs", False),
        ("/homes", "ext4", False),
        ("/mnt/ssh/x", "fuse.sshfs", True),
        ("/mnt/fuse/x", "fuse.something", False),
        ("/scratch/x", "tmpfs", False),
    ],
)
def test_the_kernels_list_of_mounts_tells_network_file_systems(path: str, kind: str, network: bool) -> None:
    assert kind_of(Path(path), MOUNTS) == kind
    assert is_network(Path(path), MOUNTS) == network
    assert kind_of(Path(path), []) == "unknown"


def example(number: int = 1, **changes: Any) -> Job:
    fields: dict[str, Any] = {
        "id": f"job-{number}", "dir": f"/jobs/job-{number}", "name": "job", "state": "queued", "submitted": 1.5, "ranks": 2,
        "backend": "local", "starter": "local", **changes,
    }  # fmt: skip
    return Job(**fields)


@pytest.mark.parametrize(("network", "mode"), [(False, "wal"), (True, "delete")])
def test_the_journal_is_safe_on_its_file_system_and_every_commit_is_durable(tmp_path: Path, network: bool, mode: str) -> None:
    connection = open_record(tmp_path / "r.sqlite", network=network)
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == mode
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2, "FULL"
    connection.close()


def test_a_record_that_moves_to_a_network_file_system_changes_its_journal(tmp_path: Path) -> None:
    for network, mode in ((False, "wal"), (True, "delete"), (False, "wal")):
        connection = open_record(tmp_path / "r.sqlite", network=network)
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == mode
        connection.close()


def test_a_write_ahead_log_in_use_on_a_network_file_system_is_refused(tmp_path: Path) -> None:
    first = open_record(tmp_path / "r.sqlite", network=False)
    first.execute("SELECT count(*) FROM jobs").fetchone()
    with pytest.raises(RecordError, match=r"is on a network file system|is locked by another program"):
        open_record(tmp_path / "r.sqlite", network=True)
    first.close()


def test_every_field_comes_back(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "r.sqlite")
    job = example(
        priority=-3, depends_on=("a", "b"), group_name="g", cpus=3, gpus=1, gpu_ids=("0",), exit_code=9, reason="wörter",
        started=2.0, finished=3.0,
        attempt=4, attempts=3, first_attempt=2, handle={"kind": "process", "pid": 1}, next_try=5.0, delay=1.0,
        excluded=("n1",), cancel=True, closed=True,
    )  # fmt: skip
    with store.transaction() as record:
        added = record.add(job)
        assert record.add(example(dir="/elsewhere")) == added, "the same id again changes nothing"
    found = store.get("job-1")
    assert found is not None
    assert {name: getattr(found, name) for name in COLUMNS if name != "seq"} == {
        name: getattr(job, name) for name in COLUMNS if name != "seq"
    }
    store.close()


def test_a_failed_transaction_changes_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "r.sqlite")
    with pytest.raises(ZeroDivisionError), store.transaction() as record:
        record.add(example())
        raise ZeroDivisionError
    assert store.get("job-1") is None
    store.close()


def test_jobs_are_found_by_state_name_and_group_and_the_newest_by_limit(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "r.sqlite")
    with store.transaction() as record:
        for number in range(6):
            record.add(example(number, state=("queued", "failed")[number % 2], group_name="even" if number % 2 == 0 else None))
    assert [job.id for job in store.find()] == [f"job-{number}" for number in range(6)]
    assert [job.id for job in store.find(limit=2)] == ["job-4", "job-5"]
    assert [job.id for job in store.find(("failed",))] == ["job-1", "job-3", "job-5"]
    assert [job.id for job in store.find(group="even", limit=1)] == ["job-4"]
    assert [job.id for job in store.find(beginning="ev")] == ["job-0", "job-2", "job-4"]
    assert [job.id for job in store.find(beginning="job-3")] == ["job-3"]
    assert store.find(beginning="ob-3") == []
    assert store.find(name="other") == []
    assert store.counts() == {"queued": 3, "failed": 3}
    assert store.states([f"job-{number}" for number in range(2000)])["job-3"] == "failed"
    store.close()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(b"no database at all, but long enough to be looked at " * 40), "is damaged"),
        (lambda path: _execute(path, "CREATE TABLE a (b)"), "no record of jobs"),
        (lambda path: (open_record(path).close(), _execute(path, "PRAGMA user_version=99")), "version 99"),
        (lambda path: path.mkdir(), "cannot be opened"),
    ],
)
def test_what_is_no_usable_record_is_refused_with_the_cause(tmp_path: Path, spoil: Any, words: str) -> None:
    path = tmp_path / "r.sqlite"
    spoil(path)
    with pytest.raises(RecordError, match=words):
        open_record(path)


def _execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


class Watch:
    """A clock that sleeping moves, with something that happens meanwhile."""

    def __init__(self, meanwhile: Any = lambda: None) -> None:
        self.now = 0.0
        self._meanwhile = meanwhile

    def steady(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._meanwhile()


DEAD = {"pid": 2**22 - 1, "pid_started": 1}


@pytest.fixture
def connection(tmp_path: Path) -> Any:
    made = open_record(tmp_path / "r.sqlite")
    yield made
    made.close()


def take(connection: sqlite3.Connection, holder: Holder, shared: bool = True, watch: Watch | None = None) -> Watch:
    used = watch or Watch()
    lease.acquire(connection, holder, shared=shared, steady=used.steady, sleep=used.sleep)
    return used


def test_the_lease_of_another_host_is_taken_only_after_it_stood_still_for_its_whole_time(connection: Any) -> None:
    take(connection, Holder(host="login1", boot="other", seconds=60.0))
    watch = take(connection, Holder(seconds=60.0))
    assert watch.now >= 60.0


def test_a_lease_that_is_renewed_is_respected_whatever_the_clocks_say(connection: Any) -> None:
    other = Holder(host="login1", boot="other", seconds=60.0)
    take(connection, other)
    watch = Watch(lambda: lease.renew(connection, other) if watch.now > 50 else None)
    with pytest.raises(LeaseHeldError, match="daemon on host login1, which lives"):
        take(connection, Holder(), watch=watch)


def test_a_dead_daemon_of_this_host_or_one_that_ended_in_order_is_succeeded_at_once(connection: Any) -> None:
    take(connection, Holder(**DEAD))
    mine = Holder()
    assert take(connection, mine).now == 0.0
    lease.release(connection, mine)
    assert take(connection, Holder(host="login1", boot="other")).now == 0.0


def test_a_living_daemon_of_this_host_is_never_succeeded(connection: Any) -> None:
    take(connection, Holder())
    with pytest.raises(LeaseHeldError, match=f"process id {os.getpid()} on this host"):
        take(connection, Holder())


def test_after_a_restart_of_the_host_a_local_record_is_free_and_a_shared_one_is_watched(connection: Any) -> None:
    take(connection, Holder(boot="before"))
    assert take(connection, Holder(boot="after"), shared=False).now == 0.0
    assert take(connection, Holder(), shared=True).now > 0.0


def test_of_two_that_wait_for_a_lease_one_gets_it(connection: Any) -> None:
    take(connection, Holder(host="login1", boot="other"))
    second = Holder(host="login3", boot="third")

    def meanwhile() -> None:
        if watch.now > 59.9 and lease.read(connection).host == "login1":  # type: ignore[union-attr]
            take(connection, second)

    watch = Watch(meanwhile)
    with pytest.raises(LeaseHeldError):
        take(connection, Holder(), watch=watch)
    assert lease.read(connection).token == second.token  # type: ignore[union-attr]


def test_the_record_can_be_read_without_a_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDGRAB_STATE", str(tmp_path))
    assert read_record_offline().views == ()
    store = Store.open(tmp_path / "record.sqlite", Holder(host="login7"))
    with store.transaction() as record:
        record.add(example(1))
        record.add(example(2, state="failed"))
    living = read_record_offline()
    assert (living.owner, [view.id for view in living.views if view.state == "failed"]) == ("login7", ["job-2"])
    assert living.views[0].owner == "login7"
    store.close()
    assert read_record_offline().owner is None
    assert [view.id for view in read_record_offline().views][-1:] == ["job-2"]
