from __future__ import annotations

import pytest

from launcher.cli.doctor import slurm
from launcher.slurm.check import expected_start, gpus_in, parse_partitions
from launcher.slurm.commands import NoAnswer, seconds
from tests.launcher.helpers import spec
from tests.slurm.cluster import Cluster

SMALL = "command: [python]\nbackend: {kind: slurm}\nresources: {ranks: 2}\n"


def found(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, text: str) -> dict[str, tuple[str, str]]:
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    return {check.name: (check.state, check.found) for check in slurm.checks(spec(text))}


def test_the_cluster_is_described_and_a_job_that_fits_fits(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = found(monkeypatch, cluster, SMALL)
    assert answers["partition main"] == ("ok", "2 nodes (2 usable) of up to 4 cores, 4 GiB, 2 GPUs; at most 2 h 0 min")
    assert answers["partition closed"][0] == "note"
    assert "none: SLURM forgets a job 8 sec after its end" in answers["accounting"][1]
    assert "pmi2" in answers["srun --mpi"][1]
    assert answers["the job"] == ("ok", "fits into partition main")
    assert answers["expected start"][0] == "ok"
    assert "at once" in answers["expected start"][1]


def test_what_a_job_asks_for_and_is_not_there_is_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    large = "slurm: {partition: short, nodes: 5, memory: 1TiB, gpus_per_node: 8}\n"
    asked = SMALL.replace("ranks: 2", "ranks: 50, time_limit: 1h") + large
    answers = found(monkeypatch, cluster, asked)
    wanted = "slurm.nodes", "resources.ranks", "resources.time_limit", "slurm.memory", "slurm.gpus_per_node", "expected start"
    for key in wanted:
        assert answers[key][0] == "missing", answers
    assert answers["slurm.nodes"][1] == "5 nodes are asked for, partition short has 2"
    answers = found(monkeypatch, cluster, SMALL + "slurm: {partition: nowhere, reservation: never}\n")
    assert answers["slurm.partition"][0] == answers["slurm.reservation"][0] == "missing"
    assert answers["slurm.partition"][1] == "there is no partition 'nowhere' (there are: closed, main, short, spare)"
    assert answers["slurm.reservation"][1] == "there is no reservation 'never' (there is: none)"


def test_without_slurm_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (check,) = slurm.checks(None)
    assert (check.state, check.found) == ("note", "there is no SLURM on this machine: no sbatch on PATH")


def test_units_of_sinfo_are_read():
    assert [seconds(text) for text in ("infinite", "1-00:00:00", "2:00:00", "30:00", "30", "2-12", "n/a")] == [
        None, 86_400.0, 7_200.0, 1_800.0, 1_800.0, 216_000.0, None]  # fmt: skip
    assert [gpus_in(text) for text in ("(null)", "gpu:2", "gpu:a100:4(S:0-1)", "gpu:a100:4,gpu:v100:2,tmp:3")] == [0, 2, 4, 6]
    line = "sbatch: Job 3 to start at 2026-11-29T21:50:57 using 2 processors on nodes n[1-2] in partition main"
    assert expected_start(line) == ("2026-11-29T21:50:57", ("n1", "n2"))
    for text in ("", "garbage", "PARTITION|AVAIL"):
        with pytest.raises(NoAnswer):
            parse_partitions(text)
