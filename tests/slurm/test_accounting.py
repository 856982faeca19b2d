from __future__ import annotations

from pathlib import Path

import pytest

from launcher.doctor import slurm
from tests.launcher.helpers import spec
from tests.real import need
from tests.slurm.accounting import accounted_cluster, present
from tests.slurm.cluster import wait_for
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
