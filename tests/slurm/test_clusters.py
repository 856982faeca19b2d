from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.attempt.starter import Alive, Gone, StartError, Unknown, Unreachable
from launcher.cli.doctor import slurm
from launcher.jobdir.end import AttemptEnd
from launcher.slurm.submission import Submission
from tests.launcher.helpers import spec
from tests.real import need
from tests.slurm.accounting import present, two_clusters
from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.conftest import need_slurm
from tests.slurm.driver import COUNT, Driver, appears, recorded
from tests.slurm.test_launch import User

pytestmark = pytest.mark.soak
Pair = tuple[Cluster, Cluster]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    need_slurm()
    need("slurmdbd with MariaDB (Debian: slurmdbd mariadb-server)", present())
    with two_clusters() as clusters:
        yield clusters


def counting(until: int, **slurm: object) -> dict[str, object]:
    return {"command": ["python", "-c", COUNT, str(until), "0.2"], "slurm": {"nodes": 2, **slurm}}


def test_jobs_of_two_clusters_with_the_same_id_are_told_apart(pair: Pair, tmp_path: Path) -> None:
    east, west = pair
    driver = Driver(east, tmp_path)
    there, there_handle = driver.submit(counting(1000, clusters="west"))
    here, here_handle = driver.submit(counting(1000, clusters="hvdgrab"))
    assert (there_handle["cluster"], here_handle["cluster"]) == ("west", "hvdgrab")
    while int(here_handle["job_id"]) < int(there_handle["job_id"]):  # until both clusters have given out the same number
        here, here_handle = driver.submit(counting(1000, clusters="hvdgrab"))
    while int(there_handle["job_id"]) < int(here_handle["job_id"]):
        there, there_handle = driver.submit(counting(1000, clusters="west"))
    assert there_handle["job_id"] == here_handle["job_id"]
    number = here_handle["job_id"]
    assert f"{there.id}.1" in west.run("squeue", "-h", "-j", number, "-o", "%j").stdout
    appears(there.rank_log(0), "starts", 60)
    driver.starter.stop(there_handle, kill=True)
    assert driver.wait(there_handle).cause == "cancelled"
    assert isinstance(driver.look(here_handle), Alive)
    assert f"{here.id}.1" in east.run("squeue", "-h", "-j", number, "-o", "%j").stdout
    for cluster in pair:
        cluster.run("scancel", "-u", cluster.layout.user)
        cluster.wait_idle()


def test_a_job_runs_to_its_end_and_is_requeued_on_the_cluster_that_it_names(pair: Pair, tmp_path: Path) -> None:
    east, west = pair
    driver = Driver(east, tmp_path)
    job, handle = driver.submit({**counting(20, clusters="west"), "restart": {"backoff": "0s"}})
    appears(job.rank_log(1), "starts", 60)
    assert west.run("scontrol", "requeue", handle["job_id"]).returncode == 0
    driver.wait(handle, 120)
    end = AttemptEnd.read(job.attempt(2))
    assert end is not None
    assert (end.state, end.hosts) == ("succeeded", ("w1", "w2"))


def test_of_several_clusters_the_one_that_took_the_job_is_kept_and_found_again(pair: Pair, tmp_path: Path) -> None:
    east, _ = pair
    driver = Driver(east, tmp_path)
    for clusters in ("hvdgrab,west", "all"):
        job, handle = driver.submit(counting(1, clusters=clusters, extra=["--hold"]))
        assert handle["cluster"] in ("hvdgrab", "west")
        known = Submission.read(job.attempt(1))
        assert known is not None
        Submission(**{**vars(known), "job_id": None, "cluster": None}).write(job.attempt(1))  # as after a crash in between
        again = Driver(east, tmp_path).starter.find(job, 1)
        assert again == handle
        driver.starter.stop(handle, kill=True)
        assert driver.wait(handle).cause == "cancelled"


def test_an_unknown_cluster_is_a_refusal_and_a_dead_one_is_not(pair: Pair, tmp_path: Path) -> None:
    east, west = pair
    driver = Driver(east, tmp_path)
    with pytest.raises(StartError, match="No cluster 'nowhere' known"):
        driver.submit(counting(1, clusters="nowhere"))
    _, handle = driver.submit(counting(1, clusters="west", extra=["--hold"]))
    _, here_handle = driver.submit(counting(1, clusters="hvdgrab", extra=["--hold"]))
    west.signal("slurmctld", signal.SIGTERM)
    west.daemons["slurmctld"].wait(60)
    driver.until(handle, lambda seen: isinstance(seen, Unknown), 60)
    assert isinstance(driver.look(here_handle), Alive), "one cluster's silence says nothing of another"
    with pytest.raises(Unreachable):
        driver.submit(counting(1, clusters="west"))
    west.start_controller()
    wait_for(lambda: east.run("squeue", "-M", "west").returncode == 0, "the controller's return", 60)
    driver.until(handle, lambda seen: isinstance(seen, Alive), 60)
    for one in (handle, here_handle):
        driver.starter.stop(one, kill=True)
        assert isinstance(driver.wait(one), Gone)


def test_one_question_an_interval_and_cluster(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    east, _ = pair
    calls = recorded(tmp_path, monkeypatch, "squeue")
    driver = Driver(east, tmp_path, interval=600.0)
    job, _ = driver.prepare(counting(1))
    base = {"kind": "slurm", "conf": str(east.layout.conf), "programs": "/usr/bin", "dir": str(job.root), "attempt": 1}
    handles = {f"{cluster}{number}": {**base, "cluster": cluster, "job_id": str(number)}
               for cluster in ("hvdgrab", "west") for number in range(100)}  # fmt: skip
    for _ in range(5):
        assert len(driver.starter.look(handles)) == 200
    assert sorted(line.split()[1:3] for line in calls.read_text().splitlines()) == [["-M", "hvdgrab"], ["-M", "west"]]


def test_a_cluster_that_is_away_holds_up_its_own_jobs_only_and_the_record_says_so(pair: Pair, tmp_path: Path) -> None:
    east, west = pair
    user = User(east, tmp_path)
    user.type("daemon", "start")
    try:
        west.signal("slurmctld", signal.SIGTERM)
        west.daemons["slurmctld"].wait(60)
        base = {"command": ["python", "-c", COUNT, "3", "0.2"], "backend": {"kind": "slurm"}}
        away = user.job({**base, "slurm": {"nodes": 2, "clusters": "west"}}, "--detach")
        here = user.job({**base, "slurm": {"nodes": 2, "clusters": "hvdgrab"}})
        assert here["state"] == "succeeded"
        found = user.state(away["id"])
        assert found["state"] in ("starting", "unknown")
        assert "'west' can't be reached now" in found["reason"]
        west.start_controller()
        user.type("wait", away["id"])
        found = user.state(away["id"])
        assert (found["state"], found["attempts"]) == ("succeeded", 1)
    finally:
        user.type("daemon", "stop", code=None)


def test_every_named_cluster_is_checked(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in pair[0].environment().items():
        monkeypatch.setenv(name, value)
    text = "command: [python]\nbackend: {kind: slurm}\nresources: {ranks: 2}\n"
    answers = {check.name: check for check in slurm.checks(spec(text + "slurm: {clusters: [hvdgrab, west]}"))}
    assert answers["SLURM hvdgrab"].state == answers["SLURM west"].state == answers["the job"].state == "ok", answers
    assert answers["expected start"].state == "ok"
    answers = {check.name: check for check in slurm.checks(spec(text + "slurm: {clusters: wst}"))}
    assert answers["slurm.clusters"].found == "there is no cluster 'wst'; did you mean 'west'? (there are: hvdgrab, west)"
    assert answers["slurm.clusters"].state == "missing"
