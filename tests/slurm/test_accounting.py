from __future__ import annotations

import signal
from pathlib import Path

import pytest

from launcher.attempt.starter import StartError
from launcher.cli.doctor import slurm
from launcher.cli.planned import prepared_jobs
from launcher.errors import PlanError
from tests.launcher.helpers import spec
from tests.real import need
from tests.slurm.accounting import accounted_cluster, present
from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.conftest import need_slurm
from tests.slurm.driver import COUNT, Driver

pytestmark = pytest.mark.soak


def test_with_accounting_the_end_of_a_forgotten_job_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_slurm()
    need("slurmdbd with MariaDB (Debian: slurmdbd mariadb-server)", present())
    with accounted_cluster() as cluster:
        driver = Driver(cluster, tmp_path, quiet=600.0)
        _, handle = driver.submit({"command": ["python", "-c", COUNT, "1", "0.1"], "slurm": {"extra": ["--hold"]}})
        cluster.run("scancel", handle["job_id"])
        wait_for(lambda: not cluster.run("squeue", "-h", "-t", "all").stdout, "the purge", 90)
        gone = driver.wait(handle, 60)
        assert gone.cause == "cancelled"
        assert "by user" in (gone.reason or "")
        for name, value in cluster.environment().items():
            monkeypatch.setenv(name, value)
        text = "command: [python]\nbackend: {kind: slurm}\nresources: {ranks: 1}\nslurm: {account: chemistry}\n"
        answers = {check.name: check for check in slurm.checks(spec(text))}
        assert answers["accounting"].found == "slurmdbd"
        assert answers["slurm.account"].found.startswith("there is no account of yours called 'chemistry'")
        assert "physics" in answers["slurm.account"].found


def test_accounts_and_qos_that_slurm_insists_on_are_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_slurm()
    need("slurmdbd with MariaDB (Debian: slurmdbd mariadb-server)", present())
    monkeypatch.chdir(tmp_path)
    with accounted_cluster() as cluster:
        insist(cluster, "associations,qos")
        for name, value in cluster.environment().items():
            monkeypatch.setenv(name, value)
        for asked, words in (
            ("account: phsics", "slurm.account: there is no account of yours called 'phsics'; did you mean 'physics'"),
            ("qos: nomal", "slurm.qos: there is no QOS 'nomal'; did you mean 'normal'"),
        ):
            with pytest.raises(PlanError, match=f"job.yaml:4: {words}"):
                warnings(asked)
        assert warnings("{account: physics, qos: normal}") == ()
        with pytest.raises(StartError, match="SLURM refused the job: .*nvalid account"):
            Driver(cluster, tmp_path).submit({"command": ["python"], "slurm": {"account": "phsics"}})


def insist(cluster: Cluster, what: str) -> None:
    with cluster.layout.conf.open("a") as conf:
        conf.write(f"AccountingStorageEnforce={what}\n")
    cluster.signal("slurmctld", signal.SIGTERM)
    cluster.daemons["slurmctld"].wait(60)
    cluster.start_controller()
    cluster.wait_idle()


def warnings(slurm_section: str) -> tuple[str, ...]:
    text = "command: [python, -c, pass]\nresources: {ranks: 2, allow_root: true}\nslurm:\n  "
    Path("job.yaml").write_text(text + slurm_section + "\n")
    return prepared_jobs("job.yaml", [], "jobs")[0].warnings
